// cron-answers says what the cron library of Velero's server answers. It reads lines of JSON from stdin, each an expression, the zone of the
// process and a time, and writes a line of JSON for each: the error, or the next five times, of which an empty one is never.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"time"
	_ "time/tzdata"

	cron "github.com/netresearch/go-cron"
)

const times = 5

type question struct {
	Spec string
	// The local zone of the server.
	Zone string
	// RFC 3339.
	From time.Time
}

type answer struct {
	Error string   `json:"error,omitempty"`
	Next  []string `json:"next,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for lines.Scan() {
		var q question
		must(json.Unmarshal(lines.Bytes(), &q))
		zone, err := time.LoadLocation(q.Zone)
		must(err)
		time.Local = zone
		must(encoder.Encode(answerTo(q)))
	}
	must(lines.Err())
}

func answerTo(q question) answer {
	// As the API's times are read.
	at := q.From.Local()
	schedule, err := cron.ParseStandard(q.Spec)
	if err != nil {
		return answer{Error: err.Error()}
	}
	var next []string
	for range times {
		at = schedule.Next(at)
		if at.IsZero() {
			return answer{Next: append(next, "")}
		}
		next = append(next, at.UTC().Format(time.RFC3339))
	}
	return answer{Next: next}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
