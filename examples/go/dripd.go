// Push jobs into the buckets of dripd, and work on them, with the Redis client redigo alone. All of it is calls of functions
// in Redis: docs/workers.md. It speaks to one Redis without partitions.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Receipt says what became of a push: of its jobs the first Accepted went in. The last four are of Submit.
type Receipt struct {
	Accepted, Depth, Capacity, RetryAfterMs, EtaMs, ExpectedMs int64
	Verdict, ID, By                                            string
}

// Refused: a function refused the call, and nothing was changed. Code is BADARG, TOOLARGE, WRONGTYPE and so on.
type Refused struct{ Code, Message string }

func (r *Refused) Error() string { return r.Message }

// ErrUnknown: the connection was lost during a push. It may have happened, and is never repeated for you.
var ErrUnknown = errors.New("cannot tell whether it happened")

// Outcome is how a job ended that is not done: your work returns one of the three below. Any other error means that it failed.
type Outcome struct {
	reason string
	how    redis.Args
	waits  bool
}

func (o Outcome) Error() string { return o.reason }

// Dead: trying it again is of no use.
func Dead(reason string) Outcome { return Outcome{reason, redis.Args{"DEAD"}, false} }

// RetryIn: it failed, and is to be tried again after this time instead of its back-off.
func RetryIn(wait time.Duration) Outcome {
	return Outcome{"failed", redis.Args{"RETRY_IN", wait.Milliseconds()}, false}
}

// Throttled: the other side said that it is too fast (429). The bucket slows down, or the budget that is named, for this
// time. Where it is 0, for as long as the headers said (Job.Limits).
func Throttled(wait time.Duration, budget string) Outcome {
	how := redis.Args{"THROTTLED"}
	if budget != "" {
		how = how.Add("IN", budget)
	}
	if wait > 0 {
		how = how.Add("RETRY_AFTER", wait.Milliseconds())
	}
	return Outcome{"throttled", how, wait == 0}
}

// Job is a job as a worker gets it. ID is the same in every try, and no other job's.
type Job struct {
	Bucket, ID string
	Body       []byte
	Attempt    int
	fields     map[string]string
	told       redis.Args
	wait       time.Duration
}

// Header is a header that its producer sent, as "traceparent"; empty where there is none.
func (job *Job) Header(name string) string { return job.fields["h:"+name] }

// Limits tells dripd what an answer says of an API's limits, in two usual forms; others: clients/limit-headers.json.
func (job *Job) Limits(headers http.Header) {
	left, noLeft := strconv.Atoi(headers.Get("X-RateLimit-Remaining"))
	reset, noReset := strconv.Atoi(headers.Get("X-RateLimit-Reset"))
	if noLeft == nil && noReset == nil {
		job.told = redis.Args{"REMAINING", left, "RESET", reset * 1000}
	}
	if s, err := strconv.Atoi(headers.Get("Retry-After")); err == nil {
		job.wait = time.Duration(s) * time.Second
	}
}

// Drip is the buckets of one dripd. Goroutines may share it.
type Drip struct{ pool *redis.Pool }

func New(url string) *Drip {
	return &Drip{&redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(url) }, MaxIdle: 4}}
}

func (d *Drip) do(command string, args ...interface{}) (interface{}, error) {
	conn := d.pool.Get()
	defer conn.Close()
	return conn.Do(command, args...)
}

// again repeats a call that does no harm when it comes twice, until Redis answers or 20 tries failed.
func (d *Drip) again(command string, args ...interface{}) (reply interface{}, err error) {
	for try := 0; try < 20; try++ {
		if reply, err = d.do(command, args...); err == nil || errors.As(err, new(redis.Error)) {
			return
		}
		time.Sleep(time.Duration(try) * 50 * time.Millisecond)
	}
	return
}

// once calls a function that is never called twice for the same jobs.
func (d *Drip) once(function, bucket string, args redis.Args) (r Receipt, err error) {
	reply, err := redis.Values(d.do("FCALL", redis.Args{function, 1, "drip:queue:" + bucket}.Add(args...)...))
	if said := redis.Error(""); errors.As(err, &said) {
		return r, &Refused{strings.SplitN(string(said), " ", 2)[0], string(said)}
	} else if err != nil {
		return r, fmt.Errorf("%s of %s: %w: %v", function, bucket, ErrUnknown, err)
	}
	all := redis.Args{&r.Accepted, &r.Depth, &r.Capacity, &r.RetryAfterMs, &r.EtaMs, &r.Verdict, &r.ID, &r.ExpectedMs, &r.By}
	_, err = redis.Scan(reply, all[:len(reply)]...)
	return
}

// Push pushes 1 to 1,000 jobs; what does not fit is left out. A full bucket is no error: look at Accepted.
func (d *Drip) Push(bucket string, jobs ...[]byte) (Receipt, error) {
	return d.once("drip_push", bucket, redis.Args{}.AddFlat(jobs))
}

// Submit pushes one job with options, as docs/functions.md has them: "ID", "x", "HEADER", "name", "value".
func (d *Drip) Submit(bucket string, job []byte, options ...interface{}) (Receipt, error) {
	return d.once("drip_submit", bucket, redis.Args{job}.Add(options...))
}

// Work takes jobs of a route, as the worker of this name, and runs one at a time until the context ends: within 2 s where it
// waits, else after the job in hand, or 4 s later, when that is given back. The context of a job ends when its lease is lost.
func (d *Drip) Work(ctx context.Context, route, name string, run func(context.Context, *Job) error) error {
	stream := strings.TrimSuffix("drip:ready:"+route, ":default")
	_, err := d.again("FCALL", "drip__route", 1, stream, "")
	for err == nil && ctx.Err() == nil {
		reply, why := redis.Values(d.again("XREADGROUP", "GROUP", "workers", name, "COUNT", 1, "BLOCK", 2000, "STREAMS", stream, ">"))
		if err = why; err == redis.ErrNil { // nothing came
			err = nil
		} else if err == nil {
			entry := reply[0].([]interface{})[1].([]interface{})[0].([]interface{})
			err = d.one(ctx, stream, name, string(entry[0].([]byte)), entry[1], run)
		}
	}
	return err
}

// one runs a job beside this goroutine, renews its lease meanwhile, and says how it ended.
func (d *Drip) one(ctx context.Context, stream, name, entry string, fields interface{}, run func(context.Context, *Job) error) error {
	field, _ := redis.StringMap(fields, nil)
	attempt, noJob := strconv.Atoi(field["attempt"])
	lease, noLease := strconv.Atoi(field["lease_ms"])
	if noJob != nil || noLease != nil || lease < 3 { // dripd buries it
		return d.fail(stream, entry, "no job", nil)
	}
	if field["id"] == "" {
		field["id"] = entry
	}
	hash := sha256.Sum256([]byte(field["bucket"]))
	job := &Job{Bucket: field["bucket"], Body: []byte(field["job"]), Attempt: attempt, ID: fmt.Sprintf("%s-%x", field["id"], hash[:8]), fields: field}
	held, lose := context.WithCancel(context.Background())
	defer lose()
	ended := make(chan error, 1)
	go func() { ended <- run(held, job) }()
	stopped, late := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case err := <-ended:
			return d.say(stream, entry, job, err)
		case <-time.After(time.Duration(lease) * time.Millisecond / 3):
			if ids, err := redis.Strings(d.again("XCLAIM", stream, "workers", name, 0, entry, "JUSTID")); err == nil && len(ids) == 0 {
				lose()
			}
		case <-stopped:
			stopped, late = nil, time.After(4*time.Second)
		case <-late:
			return d.fail(stream, entry, "worker stopped", redis.Args{"RETRY_IN", 0, "KEEP"})
		}
	}
}

// say tells dripd how a job ended.
func (d *Drip) say(stream, entry string, job *Job, why error) error {
	var outcome Outcome
	if why == nil {
		_, err := d.again("FCALL", redis.Args{"drip_ack", 1, stream, entry}.Add(job.told...)...)
		return err
	} else if errors.As(why, &outcome) && outcome.waits && job.wait > 0 {
		outcome.how = outcome.how.Add("RETRY_AFTER", job.wait.Milliseconds())
	}
	return d.fail(stream, entry, why.Error(), outcome.how.Add(job.told...))
}

func (d *Drip) fail(stream, entry, reason string, how redis.Args) error {
	_, err := d.again("FCALL", redis.Args{"drip_fail", 1, stream, entry}.Add(how...).Add("REASON", reason)...)
	return err
}
