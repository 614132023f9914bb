package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// TaskLoad is how many runs fall due in the coming hours. Limits such as max_runs, overlap policies and freezes are not
// considered.
type TaskLoad struct {
	From            task.Time     `json:"from" doc:"The beginning of the first step: that of the current minute."`
	Step            task.Duration `json:"step"`
	Runs            []float64     `json:"runs" doc:"The number of runs in each step. A run whose time is not exact counts in several steps with a part each."`
	Tasks           int           `json:"tasks" doc:"The number of tasks with a tick in this time."`
	Jittered        int           `json:"jittered" doc:"How many of these tasks have jitter. Their runs are spread evenly over the time in which they may fall due."`
	Inexact         int           `json:"inexact" doc:"How many of these tasks combine @every with other expressions. The runs of @every are spread evenly over the whole time."`
	AfterCompletion int           `json:"after_completion" doc:"The number of tasks whose ticks follow from the ends of runs. They are not predictable, and not included."`
	Peaks           []LoadPeak    `json:"peaks" doc:"The minutes with the most runs, those with the most runs first. Of consecutive minutes with equally many runs, only the first is listed."`
	Minute          *LoadPeak     `json:"minute,omitempty" doc:"The minute of the parameter minute."`
	Advice          []LoadAdvice  `json:"advice" doc:"What would lower the peaks."`
	ListInfo
}

// LoadPeak is a minute with many runs, or one that was asked for.
type LoadPeak struct {
	At          task.Time    `json:"at"`
	Runs        float64      `json:"runs"`
	Makers      []LoadMaker  `json:"makers" doc:"The schedules with the most runs in this minute, at most five."`
	OtherMakers int          `json:"other_makers,omitempty" doc:"The number of further schedules. Each node names at most 100."`
	Seconds     []LoadSecond `json:"seconds" doc:"The seconds with the most runs, at most five, those with the most runs first."`
}

// LoadSecond is a second of a minute with many runs.
type LoadSecond struct {
	Second int     `json:"second" doc:"From 0 to 59."`
	Runs   float64 `json:"runs"`
}

// LoadMaker is all tasks with the same schedule, with what they contribute to a minute.
type LoadMaker struct {
	Schedule string        `json:"schedule" doc:"The expressions. Tasks that have nothing but @at are counted together."`
	Timezone string        `json:"timezone"`
	Jitter   task.Duration `json:"jitter,omitempty"`
	Tasks    int           `json:"tasks" doc:"The number of tasks that may have a run in this minute."`
	Runs     float64       `json:"runs"`
	Names    []string      `json:"names" doc:"The first three tasks in the order of their names, with their namespaces."`
}

// LoadAdvice says what would lower a peak.
type LoadAdvice struct {
	At       task.Time `json:"at"`
	Schedule string    `json:"schedule"`
	Timezone string    `json:"timezone"`
	Tasks    int       `json:"tasks"`
	Text     string    `json:"text"`
}

// LoadOptions select the tasks and the time of a load.
type LoadOptions struct {
	Namespace string        // "": all namespaces that the caller may read
	Query     string        // a query line: only tasks that match
	Selector  string        // only tasks with these labels
	Names     []string      // only tasks with these names or globs
	Span      time.Duration // 0: 24 hours, which is the maximum
	Step      time.Duration // 0: a minute
	Peaks     int           // the maximum number of peaks
	Minute    time.Time     // what makes this minute, too; zero: none
}

// LoadService reads how many runs are to come.
type LoadService struct{ conn *connection }

// Get returns the load of the coming hours. It comes from the memory of all scheduling nodes.
func (s *LoadService) Get(ctx context.Context, o LoadOptions) (TaskLoad, error) {
	path, err := namespacePath(o.Namespace, "/load")
	if err != nil {
		return TaskLoad{}, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "q", o.Query)
	setIfNotEmpty(q, "selector", o.Selector)
	setIfNotEmpty(q, "name", strings.Join(o.Names, ","))

	if o.Span != 0 {
		q.Set("span", task.Duration(o.Span).String())
	}
	if o.Step != 0 {
		q.Set("step", task.Duration(o.Step).String())
	}
	if o.Peaks != 0 {
		q.Set("peaks", strconv.Itoa(o.Peaks))
	}
	if !o.Minute.IsZero() {
		q.Set("minute", o.Minute.UTC().Format(time.RFC3339))
	}

	var l TaskLoad
	err = s.conn.doCall(ctx, call{method: http.MethodGet, path: path, query: q}, &l)

	return l, err
}
