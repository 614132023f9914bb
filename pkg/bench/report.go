package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sys/unix"
)

// Report is the output of a benchmark, as JSON or as a table.
type Report struct {
	Machine  Machine  `json:"machine"`
	Versions Versions `json:"versions"`
	Command  string   `json:"command"` // reproduces the run
	Etcd     string   `json:"etcd"`    // how it was reached, and where its data is
	Results  []Result `json:"results"`
}

// Versions are the versions of what was measured.
type Versions struct {
	Carillon string `json:"carillon"`
	Go       string `json:"go"`
	Etcd     string `json:"etcd"`
}

// Result is one figure with its details. Fields that do not apply are absent.
type Result struct {
	Name       string   `json:"name"`
	Count      int64    `json:"count,omitempty"` // of what was measured
	Seconds    float64  `json:"seconds,omitempty"`
	RatePerS   float64  `json:"rate_per_s,omitempty"`
	CPUMicros  float64  `json:"cpu_us_each,omitempty"` // CPU time of this process for each, including an embedded etcd; more reliable than rates on a busy machine
	LimitPerS  float64  `json:"limit_per_s,omitempty"` // what etcd, or the kernel, can do of the same, in the same run
	LimitIs    string   `json:"limit_is,omitempty"`    // the name of the limit's result
	Ratio      float64  `json:"ratio,omitempty"`
	LatenessMS *Spread  `json:"lateness_ms,omitempty"`
	AnswerMS   *Spread  `json:"answer_ms,omitempty"`          // from a question to its answer, as the client sees it
	Refused    int64    `json:"refused,omitempty"`            // questions that were answered with 429
	OldestMS   float64  `json:"oldest_answer_ms,omitempty"`   // the largest age of an answer
	MissingMS  float64  `json:"missing_ms,omitempty"`         // how long lists lacked shards
	Collecting *int     `json:"collecting_percent,omitempty"` // for how many tasks it was still known how their last run had ended, at least
	PerCommit  float64  `json:"ticks_per_commit,omitempty"`
	PerRequest float64  `json:"transactions_per_request,omitempty"` // transactions in each request to etcd, with the batching committer
	Skipped    int64    `json:"skipped,omitempty"`                  // ticks, by overlap
	Missed     int64    `json:"missed,omitempty"`                   // ticks that were found too late
	Tasks      int64    `json:"tasks,omitempty"`
	LoadMS     float64  `json:"load_ms,omitempty"`                     // from the start of the process until every shard can fire
	CollectMS  float64  `json:"collect_ms,omitempty"`                  // how long it was read how the runs of all tasks had ended, in the background
	CollectCPU float64  `json:"collect_cpu_us_each,omitempty"`         // the CPU time of that for each task
	Reopened   int64    `json:"shards_reopened,omitempty"`             // how often a shard had to be loaded again, because something stalled
	MemoryPer  *float64 `json:"memory_bytes_per_task,omitempty"`       // resident, compared with no tasks, after a garbage collection that returns free memory
	MemoryAsIs *float64 `json:"memory_as_is_bytes_per_task,omitempty"` // the same, without a forced garbage collection
	HeapPer    *float64 `json:"heap_bytes_per_task,omitempty"`
	IdleCPU    *float64 `json:"idle_cpu,omitempty"`       // seconds of CPU time per second while nothing is due
	CostRatio  float64  `json:"cost_ratio,omitempty"`     // cpu_us_each, relative to that with few tasks
	GapMS      *float64 `json:"longest_gap_ms,omitempty"` // the longest time between two runs of a task, minus its period
	Verified   *bool    `json:"verified,omitempty"`
	Faults     []string `json:"faults,omitempty"` // why it is not verified
}

// Spread is the distribution of a time, in milliseconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// newSpread returns the distribution of samples, or nil if there are none. It sorts the samples.
func newSpread(samples []time.Duration) *Spread {
	if len(samples) == 0 {
		return nil
	}

	slices.Sort(samples)
	at := func(permille int) float64 {
		return roundTo(float64(samples[(len(samples)-1)*permille/1000])/float64(time.Millisecond), 3)
	}

	return &Spread{P50: at(500), P99: at(990), Max: at(1000)}
}

// roundTo rounds to a number of decimal places.
func roundTo(x float64, digits int) float64 {
	f := math.Pow10(digits)
	return math.Round(x*f) / f
}

// stopwatch measures how many operations happen in how much time, and what CPU time they use.
type stopwatch struct {
	began time.Time
	first int64         // the count at the beginning
	cpu   time.Duration // CPU time of the process at the beginning
}

// startWatch starts to measure. count is the number of operations so far.
func startWatch(count int64) stopwatch { return stopwatch{time.Now(), count, cpuTime()} }

// ratePerSecond returns the rate so far.
func (s stopwatch) ratePerSecond(count int64) float64 {
	return float64(count-s.first) / time.Since(s.began).Seconds()
}

// fillResult sets the fields of a result that the stopwatch measures.
func (s stopwatch) fillResult(count int64, r *Result) {
	r.Count, r.Seconds, r.RatePerS = count-s.first, roundTo(time.Since(s.began).Seconds(), 3), roundTo(s.ratePerSecond(count), 1)
	if r.Count > 0 {
		r.CPUMicros = roundTo(float64((cpuTime()-s.cpu).Nanoseconds())/1000/float64(r.Count), 2)
	}
}

// compareWith sets the limit that the rate is compared with; nil: none.
func (r *Result) compareWith(limit *Result) {
	if limit != nil && limit.RatePerS > 0 {
		r.LimitPerS, r.LimitIs, r.Ratio = limit.RatePerS, limit.Name, roundTo(r.RatePerS/limit.RatePerS, 3)
	}
}

// setVerified sets whether the result is verified.
func (r *Result) setVerified(err error) {
	ok := err == nil
	if r.Verified = &ok; !ok {
		r.Faults = strings.Split(err.Error(), "\n")
	}
}

// unverifiedError is the error of a command whose figures cannot be trusted.
type unverifiedError struct{ names []string }

func (e unverifiedError) Error() string {
	return "not verified: " + strings.Join(e.names, ", ") + ": etcd does not contain the expected records"
}

// ExitCode is the exit code for findings.
func (unverifiedError) ExitCode() int { return 8 }

// requireVerified returns an error if a result is not verified.
func (r *Report) requireVerified() error {
	var e unverifiedError
	for _, res := range r.Results {
		if res.Verified != nil && !*res.Verified {
			e.names = append(e.names, res.Name)
		}
	}

	if len(e.names) > 0 {
		return e
	}

	return nil
}

// writeTo writes the report as JSON or as a table.
func (r *Report) writeTo(out io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")

		return e.Encode(r)
	}

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options, style.Format = table.OptionsNoBordersAndSeparators, table.FormatOptions{}
	style.Box = table.BoxStyle{PaddingRight: "  "}
	t.SetStyle(style)
	t.AppendHeader(table.Row{"NAME", "RATE/s", "LIMIT/s", "RATIO", "CPU µs", "P50 ms", "P99 ms", "MAX ms", "VERIFIED", "NOTES"})

	for _, res := range r.Results {
		t.AppendRow(res.tableRow())
	}

	var b strings.Builder

	for line := range strings.Lines(t.Render() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}

	for _, res := range r.Results {
		for _, f := range res.Faults {
			fmt.Fprintf(&b, "%s: %s\n", res.Name, f)
		}
	}

	fmt.Fprintf(&b, "\n%s\ncarillon %s, etcd %s (%s), %s\n%s\n", r.Machine, r.Versions.Carillon, r.Versions.Etcd, r.Etcd, r.Versions.Go, r.Command)
	_, err := io.WriteString(out, b.String())

	return err
}

// tableRow returns the result as a row of the table.
func (r *Result) tableRow() table.Row {
	row := table.Row{r.Name, formatNumber(r.RatePerS), formatNumber(r.LimitPerS), "", "", "", "", "", "", r.formatNotes()}
	if r.Ratio > 0 {
		row[3] = fmt.Sprintf("%.0f %%", 100*r.Ratio)
	}

	if r.CPUMicros > 0 {
		row[4] = fmt.Sprintf("%.1f", r.CPUMicros)
	}

	if l := cmp.Or(r.AnswerMS, r.LatenessMS); l != nil {
		row[5], row[6], row[7] = fmt.Sprintf("%.1f", l.P50), fmt.Sprintf("%.1f", l.P99), fmt.Sprintf("%.1f", l.Max)
	}

	if r.Verified != nil {
		row[8] = map[bool]string{true: "yes", false: "NO"}[*r.Verified]
	}

	return row
}

// formatNotes formats what the columns do not show.
func (r *Result) formatNotes() string {
	var notes []string
	for _, n := range []struct {
		what  string
		count int64
	}{{"skipped", r.Skipped}, {"missed", r.Missed}} {
		if n.count > 0 {
			notes = append(notes, fmt.Sprintf("%s %s", formatNumber(float64(n.count)), n.what))
		}
	}

	if r.AnswerMS != nil && r.LatenessMS != nil {
		notes = append(notes, fmt.Sprintf("tasks fired %.1f ms late (p50), %.1f (p99)", r.LatenessMS.P50, r.LatenessMS.P99))
	}

	if r.Refused > 0 {
		notes = append(notes, fmt.Sprintf("%s of %s questions were refused", formatNumber(float64(r.Refused)), formatNumber(float64(r.Count))))
	}

	if r.OldestMS > 0 {
		notes = append(notes, fmt.Sprintf("the oldest answer was %s ms old", formatNumber(r.OldestMS)))
	}

	if r.MissingMS > 0 {
		notes = append(notes, fmt.Sprintf("shards were missing for %s ms", formatNumber(r.MissingMS)))
	}

	if r.Collecting != nil {
		notes = append(notes, fmt.Sprintf("lists said \"collecting\" from %d %% on", *r.Collecting))
	}

	if r.PerCommit > 0 {
		notes = append(notes, fmt.Sprintf("%.1f ticks a commit", r.PerCommit))
	}

	if r.PerRequest > 0 {
		notes = append(notes, fmt.Sprintf("%.1f transactions a request", r.PerRequest))
	}

	if r.Tasks > 0 {
		notes = append(notes, fmt.Sprintf("%s tasks", formatNumber(float64(r.Tasks))))
	}

	if r.LoadMS > 0 {
		notes = append(notes, fmt.Sprintf("loaded in %s ms", formatNumber(r.LoadMS)))
	}

	if r.CollectMS > 0 {
		notes = append(notes, fmt.Sprintf("how runs had ended was read in %s ms", formatNumber(r.CollectMS)))
	}

	if r.Reopened > 0 {
		notes = append(notes, fmt.Sprintf("%d shards opened again", r.Reopened))
	}

	if r.MemoryPer != nil {
		notes = append(notes, fmt.Sprintf("%.0f bytes a task (%.0f before collecting, %.0f heap)", *r.MemoryPer, *r.MemoryAsIs, *r.HeapPer))
	}

	if r.IdleCPU != nil {
		notes = append(notes, fmt.Sprintf("idle %.2f %% of a core", 100**r.IdleCPU))
	}

	if r.GapMS != nil {
		notes = append(notes, fmt.Sprintf("longest gap %s ms", formatNumber(*r.GapMS)))
	}

	if r.CostRatio > 0 {
		notes = append(notes, fmt.Sprintf("a fire costs %.2f × as much as with few tasks", r.CostRatio))
	}

	return strings.Join(notes, ", ")
}

// formatNumber formats a number with separators between thousands; "" for 0.
func formatNumber(x float64) string {
	if x == 0 {
		return ""
	}

	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}

	return s
}

// Machine describes where a benchmark ran.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`  // that this process may use
	Memory int64  `json:"memory"` // in bytes
	OS     string `json:"os"`
}

// String formats the machine on one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.1f GiB, %s", m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.OS)
}

// thisMachine reads the properties of this machine. Those that the system does not provide are "unknown".
func thisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.GOMAXPROCS(0), OS: runtime.GOOS + "/" + runtime.GOARCH}
	if model := fileField("/proc/cpuinfo", "model name", ":"); model != "" {
		m.CPU = model
	}

	if kib, _, _ := strings.Cut(fileField("/proc/meminfo", "MemTotal", ":"), " "); kib != "" {
		n, _ := strconv.ParseInt(kib, 10, 64)
		m.Memory = n << 10
	}

	if pretty := strings.Trim(fileField("/etc/os-release", "PRETTY_NAME", "="), `"`); pretty != "" {
		m.OS = pretty
	}

	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.OS += ", " + unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}

	return m
}

// fileField returns the value of the first line of a file that begins with a name, or "".
func fileField(path, name, separator string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}

	for line := range strings.Lines(string(b)) {
		if n, v, ok := strings.Cut(line, separator); ok && strings.TrimSpace(n) == name {
			return strings.TrimSpace(v)
		}
	}

	return ""
}

// fileSystem names the file system of a directory. On tmpfs, syncs cost nothing, so the figures are of little
// value.
func fileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return "unknown file system"
	}

	switch int64(s.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs: its syncs cost nothing"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}

	return fmt.Sprintf("file system %#x", s.Type)
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
