package factory

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// daysText is a number of days, which Go's durations do not have.
var daysText = regexp.MustCompile(`^([0-9]{1,5})d$`)

// parseAge reads a duration, which may be in days.
func parseAge(s string) (time.Duration, bool) {
	if m := daysText.FindStringSubmatch(s); m != nil {
		days, _ := strconv.Atoi(m[1])
		return time.Duration(days) * 24 * time.Hour, true
	}

	d, err := time.ParseDuration(s)

	return d, err == nil && d >= 0
}

// ParseDays parses the value s of a flag that is a duration, which may be in days.
func ParseDays(flag, s string) (task.Duration, error) {
	if d, ok := parseAge(s); ok {
		return task.Duration(d), nil
	}

	return task.ParseDuration(flag, s)
}

// ParseEnd parses the value s of a flag that says when something ends: a duration from now such as 30d or 8h, or a time.
// It returns the zero time for an empty value.
func (f *Factory) ParseEnd(flag, s string) (task.Time, error) {
	if d, ok := parseAge(s); ok {
		if d < time.Second {
			return task.Time{}, failure.Usage("--%s %s: is less than a second", flag, task.Quote(s))
		}
		return task.At(f.Now().Add(d).Truncate(time.Second)), nil
	}

	t, err := ParseTime(flag, s, f.Zone(output.ReaderZone))
	if err != nil {
		return task.Time{}, failure.Usage("--%s %s: write 30d, 8h, 2027-03-28 or 2027-03-28T01:30:00Z", flag, task.Quote(s))
	}
	if t.IsZero() {
		return task.Time{}, nil
	}

	return task.At(t), nil
}

// ParseBeginning parses the value s of a flag that says since or until when something happened: a duration ago such as 15m
// or 7d, or a time. It returns the zero time for an empty value.
func (f *Factory) ParseBeginning(flag, s string) (time.Time, error) {
	if d, ok := parseAge(s); ok {
		return f.Now().Add(-d), nil
	}

	t, err := ParseTime(flag, s, f.Zone(output.ReaderZone))
	if err != nil {
		return t, failure.Usage("--%s %s: use a duration such as 15m or 7d, or a time such as 2027-03-28T01:30:00Z", flag, task.Quote(s))
	}

	return t, nil
}

// ParseLabels parses the values of a flag that sets labels: KEY=VALUE, or several of these separated by commas.
func ParseLabels(flag string, pairs []string) (map[string]string, error) {
	var labels map[string]string
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, failure.Usage("--%s %s: is not KEY=VALUE", flag, task.Quote(pair))
		}
		if old, twice := labels[key]; twice && old != value {
			return nil, failure.Usage("--%s %s: %s is given twice", flag, task.Quote(pair), task.Quote(key))
		}
		if labels == nil {
			labels = map[string]string{}
		}

		labels[key] = value
	}

	return labels, task.CheckLabels("labels", labels)
}

// busyTries and busyWait are how often and after which pause RetryBusy repeats a call.
const (
	busyTries = 6
	busyWait  = 400 * time.Millisecond
)

// RetryBusy repeats a change of access records that the server refused because the cluster's share of such changes within
// a second was used up. A script that creates many namespaces gets there easily.
func RetryBusy[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := do()
		var e *client.Error
		if !errors.As(err, &e) || e.Code != client.CodeRateLimited || try == busyTries {
			return v, err
		}
		if err := Sleep(ctx, busyWait); err != nil {
			return v, err
		}
	}
}

// RetryBusyError is RetryBusy for a change that returns nothing.
func RetryBusyError(ctx context.Context, do func() error) error {
	_, err := RetryBusy(ctx, func() (struct{}, error) { return struct{}{}, do() })
	return err
}
