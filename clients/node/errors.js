// What is thrown: by a push, and by your work.
import { ErrorReply } from 'redis';

// What passes: Redis or the first daemon is not there yet, or Redis takes no writes for now. The others stay until somebody acts.
const PASSES = new Set(['AWAY', 'LOADING', 'BUSY', 'MASTERDOWN', 'READONLY', 'CLUSTERDOWN', 'TRYAGAIN', 'NOREPLICAS', 'MISCONF', 'OOM']);

export class Refused extends Error {
  constructor(why) {
    const code = why instanceof ErrorReply ? why.message.split(' ', 1)[0] : 'AWAY'; // Redis could not be reached
    super(why instanceof ErrorReply ? why.message : `AWAY ${textOf(why)}`, { cause: why });
    this.code = code;
  }
}
export class Unknown extends Error {}
export class Dead extends Error {}
export class RetryIn extends Error {
  constructor(ms, reason = 'failed') {
    super(reason);
    this.ms = ms;
  }
}
export class Throttled extends Error {
  constructor(retryAfterMs = 0, budget = undefined, reason = 'throttled') {
    super(reason);
    Object.assign(this, { retryAfterMs, budget });
  }
}

// May the same call be taken a little later, without anybody's help but a daemon's? One whose outcome is unknown may, where it may come twice.
export function passes(why) {
  if (!(why instanceof Refused)) return why instanceof Unknown;
  const isEarly = why.message.includes('unction not found') || (why.code === 'BADBUCKET' && why.message.includes('try again'));
  return PASSES.has(why.code) || isEarly || why.message.includes('max number of clients reached');
}

// What can be said of something that was thrown, whatever it is.
export function textOf(why) {
  try {
    return String(why?.message || why?.code || why); // where each address of a name refuses, there is no message
  } catch {
    return 'something without a text';
  }
}
