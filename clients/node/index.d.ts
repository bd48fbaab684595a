/** What became of a push: of its jobs the first `accepted` went in. */
export interface Receipt {
  accepted: number; depth: number; capacity: number;
  /** Until one place is expected to be free; -1: all went in. */
  retryAfterMs: number;
  /** Until the last accepted job is due; -1: none went in. */
  etaMs: number;
}

/** What became of a job with options. */
export interface Submitted extends Receipt {
  verdict: 'queued' | 'delayed' | 'replaced' | 'duplicate' | 'full' | 'late' | 'gated';
  id: string; expectedMs: number; by: string;
}

export interface Options {
  id?: string; delayMs?: number; atMs?: number; ttlMs?: number; cost?: number;
  headers?: Record<string, string>;
  /** A header of that name. */
  traceparent?: string;
}

/** A job as a worker gets it. */
export interface Job {
  bucket: string; body: Buffer;
  /** 1 for the first try. */
  attempt: number;
  /** The same in every try, and no other job's. */
  id: string;
  /** The entry of this try in its ready stream. */
  entry: string;
  headers: Record<string, string>; traceparent?: string;
  /** Tell dripd what the headers of an API's answer say about its limits (x-ratelimit-remaining and such). They are about this bucket, or the budget that is named. What cannot be understood is logged once a minute, and counted (unreadHeaders). */
  limits(headers: Headers | Record<string, string | string[]>, budget?: string): void;
  /** Aborted when the lease was lost, or when the worker gave the job back: stop, somebody else may have it. */
  signal: AbortSignal;
}

/** A call was refused, and nothing was changed. `code` is what a function or Redis says (BADBUCKET, BADARG, TOOLARGE, TOOMANY, WRONGTYPE, OOM, LOADING, NOAUTH …), ERR where it says no more than that, and AWAY where Redis could not be reached. */
export class Refused extends Error { code: string; }
/** The connection was lost during a push: it may have happened. It is never repeated for you. */
export class Unknown extends Error {}
/** Thrown by your work: trying this job again is of no use. */
export class Dead extends Error {}
/** Thrown by your work: it failed, and is to be tried again after so long instead of its back-off. */
export class RetryIn extends Error { constructor(ms: number, reason?: string); ms: number; }
/** Thrown by your work: the other side said that it is too fast (429). The bucket slows down, or the budget that is named. Without a time it is the one that Job.limits has read. */
export class Throttled extends Error {
  constructor(retryAfterMs?: number, budget?: string, reason?: string);
  retryAfterMs: number; budget?: string;
}

/** Buckets of one dripd, under one prefix. `partitions` and `partitionBy` are those of its configuration. */
export class Drip {
  /** `log` gets a line where something must be said, as console.warn does if there is none. */
  constructor(url?: string, options?: { prefix?: string; partitions?: number; partitionBy?: number; log?: (line: string) => void });
  /** How many headers that Job.limits was given could not be understood. */
  readonly unreadHeaders: number;
  /** Push 1 to 1,000 jobs; what does not fit is left out. A full bucket is no error: look at `accepted`. */
  push(bucket: string, ...jobs: (string | Buffer)[]): Promise<Receipt>;
  /** Push one job with options. */
  submit(bucket: string, job: string | Buffer, options?: Options): Promise<Submitted>;
  /** Take jobs of a route and call `run` with each, one at a time, until TERM or INT, or `stop`. Throw what became of a job that is not done: it is logged. Where Redis or dripd is away, this waits. It closes its connections at its end. */
  work(run: (job: Job) => unknown, options?: { route?: string; name?: string; signals?: boolean }): Promise<void>;
  /** End each `work` that runs: within 2 s where it waits, else after the job in hand, or after 4 s, when that is given back. */
  stop(): void;
  /** Stop, wait for that, and close the connections. A connection that waits for nothing does not keep the process, so a program may end without it. */
  close(): Promise<void>;
}
