// The adapter of dripd.go for clients/conformance/run.py: commands on standard input, what came of them on standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type command struct {
	Op, Bucket, Route string
	Job               []byte // base64 in JSON
	Jobs              [][]byte
	Options           map[string]interface{}
}

var (
	drip    = New(os.Getenv("REDIS_URL"))
	writing sync.Mutex
	seen    = map[string]bool{}
)

func tell(said map[string]interface{}) {
	writing.Lock()
	defer writing.Unlock()
	json.NewEncoder(os.Stdout).Encode(said)
}

// optionsOf: what drip_submit calls the options of a command.
func optionsOf(given map[string]interface{}) (options []interface{}) {
	for name, value := range given {
		switch name {
		case "headers":
			for header, value := range value.(map[string]interface{}) {
				options = append(options, "HEADER", header, value)
			}
		case "traceparent":
			options = append(options, "HEADER", name, value)
		default:
			options = append(options, strings.ToUpper(strings.TrimSuffix(name, "_ms")), value)
		}
	}
	return
}

func answer(c command) {
	var r Receipt
	var err error
	receipt := []interface{}{}
	if c.Op == "push" {
		r, err = drip.Push(c.Bucket, c.Jobs...)
		receipt = append(receipt, r.Accepted, r.Depth, r.Capacity, r.RetryAfterMs, r.EtaMs)
	} else {
		r, err = drip.Submit(c.Bucket, c.Job, optionsOf(c.Options)...)
		receipt = append(receipt, r.Accepted, r.Depth, r.Capacity, r.RetryAfterMs, r.EtaMs, r.Verdict, r.ID, r.ExpectedMs, r.By)
	}
	var refused *Refused
	if errors.As(err, &refused) {
		tell(map[string]interface{}{"refused": refused.Code})
	} else if errors.Is(err, ErrUnknown) {
		tell(map[string]interface{}{"unknown": true})
	} else {
		tell(map[string]interface{}{"receipt": receipt})
	}
}

func headers(words ...string) http.Header {
	all := http.Header{}
	for n := 0; n < len(words); n += 2 {
		all.Set(words[n], words[n+1])
	}
	return all
}

func run(ctx context.Context, job *Job) error {
	var trace interface{}
	if parent := job.Header("traceparent"); parent != "" {
		trace = parent
	}
	tell(map[string]interface{}{"job": job.Body, "bucket": job.Bucket, "attempt": job.Attempt, "id": job.ID, "traceparent": trace})
	words := strings.SplitN(string(job.Body), " ", 3)
	rest := strings.Join(words[1:], " ")
	ms := time.Duration(0)
	if len(words) > 1 {
		n, _ := strconv.Atoi(words[1])
		ms = time.Duration(n) * time.Millisecond
	}
	isFirst := !seen[job.ID]
	seen[job.ID] = true
	switch {
	case words[0] == "fail":
		return errors.New(rest)
	case words[0] == "dead":
		return Dead(rest)
	case words[0] == "sleep":
		time.Sleep(ms)
	case words[0] == "limits":
		job.Limits(headers("X-RateLimit-Remaining", rest, "X-RateLimit-Reset", "60"))
	case words[0] == "retry" && isFirst:
		return RetryIn(ms)
	case words[0] == "refused" && isFirst:
		job.Limits(headers("Retry-After", rest))
		return Throttled(0, "")
	case words[0] == "throttle" && isFirst:
		return Throttled(ms, strings.Join(words[2:], " "))
	}
	return nil
}

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	routes := make(chan string, 1)
	go func() {
		for lines := bufio.NewReader(os.Stdin); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var c command
			if err := json.Unmarshal(line, &c); err != nil {
				fmt.Fprintln(os.Stderr, err)
			} else if c.Op == "work" {
				routes <- c.Route
			} else {
				answer(c)
			}
		}
	}()
	select {
	case <-ctx.Done(): // while it does not work
	case route := <-routes:
		if err := drip.Work(ctx, route, fmt.Sprint("go-", os.Getpid()), run); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
