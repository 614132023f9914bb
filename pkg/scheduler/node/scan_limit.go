package node

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// scanPart is which part of the processor time scans may take.
	scanPart = 0.05
	// scanBurst is for how long unused time can be saved up: long enough for a few scans of a million tasks, of some 50 ms each,
	// on a node with two processors.
	scanBurst = 2 * time.Second
	// subjectActiveFor is for how long a subject counts as one that asks.
	subjectActiveFor = 10 * time.Second
	// minScanRetry is the shortest time after which a subject may ask again.
	minScanRetry = 50 * time.Millisecond
)

// ScanLimiter limits what a node spends on queries about many tasks, so that they do not delay the firing of
// ticks: few scans run at a time, and on average they take a small part of the processors.
//
// Subjects share this fairly: of n subjects that ask all the time, each gets about an n-th, however often it asks. What
// the others leave may be used by anybody: a subject that has used up its share may scan as long as at least half of
// what can be saved up is left for the others. The cost of a scan is known only afterwards. So a scan may begin as long
// as there is anything left, and the debt that it causes delays the next ones.
type ScanLimiter struct {
	slots chan struct{}        // holds a value for each scan that runs
	rate  float64              // seconds of scanning that are allowed in a second
	spent func() time.Duration // what the calling thread has spent so far

	mu       sync.Mutex
	all      scanBudget
	subjects map[string]*scanBudget
}

// scanBudget is how much scanning is left.
type scanBudget struct {
	seconds float64 // below 0: a debt
	at      time.Time
	asked   time.Time
}

// NewScanLimiter returns a ScanLimiter for the processors that the process may use.
func NewScanLimiter() *ScanLimiter { return NewScanLimiterMeasuredBy(threadTime) }

// NewScanLimiterMeasuredBy is NewScanLimiter with another measure of what a scan costs, for tests: spent returns what the
// calling thread has spent so far.
func NewScanLimiterMeasuredBy(spent func() time.Duration) *ScanLimiter {
	procs := runtime.GOMAXPROCS(0)

	return &ScanLimiter{slots: make(chan struct{}, max(1, procs/2)), rate: scanPart * float64(procs), spent: spent, subjects: map[string]*scanBudget{}}
}

// Begin waits until a scan may begin, or until ctx ends. The goroutine that calls Begin must scan, and must call end when
// the scan is over. If the subject
// may not scan now, retry is after which time it may, and end is nil.
func (l *ScanLimiter) Begin(ctx context.Context, subject string) (end func(), retry time.Duration, err error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}

	end, retry = l.beginInSlot(subject)

	return end, retry, nil
}

// BeginWithin is Begin for a caller without a context. end is nil if the scan cannot begin within the timeout.
func (l *ScanLimiter) BeginWithin(timeout time.Duration, subject string) (end func()) {
	select {
	case l.slots <- struct{}{}:
		end, _ = l.beginInSlot(subject)
		return end
	case <-time.After(timeout):
		return nil
	}
}

// beginInSlot is Begin after the wait for a slot, which it gives back if the subject may not scan now.
func (l *ScanLimiter) beginInSlot(subject string) (end func(), retry time.Duration) {
	// The budget is checked now and not before the wait, because the scans before this one have used it.
	retry, ofOthers := l.check(subject, time.Now())
	if retry > 0 {
		<-l.slots
		return nil, retry
	}

	// A scan is charged the processor time of its thread. On a host that is short of processors, a scan takes long, but
	// costs no more.
	runtime.LockOSThread()
	began := l.spent()

	return func() {
		took := l.spent() - began
		runtime.UnlockOSThread()
		l.charge(subject, took, ofOthers) // before the next scan begins, which is checked then
		<-l.slots
	}, 0
}

// check returns 0 if a subject may scan at now, or else the time after which it may. ofOthers reports that the scan uses
// what other subjects leave, because the share of this one is used up.
func (l *ScanLimiter) check(subject string, now time.Time) (retry time.Duration, ofOthers bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	own := l.subjects[subject]
	if own == nil {
		own = &scanBudget{}
		l.subjects[subject] = own
	}

	own.asked = now

	for name, b := range l.subjects {
		if now.Sub(b.asked) > subjectActiveFor {
			delete(l.subjects, name)
		}
	}

	share := l.rate / float64(len(l.subjects))
	l.all.refill(l.rate, now)
	own.refill(share, now)

	spare := l.rate * scanBurst.Seconds() / 2
	switch {
	case l.all.seconds > 0 && own.seconds > 0:
		return 0, false
	case l.all.seconds >= spare:
		return 0, true
	}

	wait := max(-l.all.seconds/l.rate, min(-own.seconds/share, (spare-l.all.seconds)/l.rate))

	return max(time.Duration(wait*float64(time.Second)), minScanRetry), false
}

// refill adds what a budget has gained since it was last refilled. A new budget is full.
func (b *scanBudget) refill(rate float64, now time.Time) {
	full := rate * scanBurst.Seconds()
	if b.at.IsZero() {
		b.seconds = full
	}

	b.seconds = min(b.seconds+rate*now.Sub(b.at).Seconds(), full)
	b.at = now
}

// charge subtracts the time of a scan: from what all may use, and from the share of the subject unless the scan used what
// others left.
func (l *ScanLimiter) charge(subject string, took time.Duration, ofOthers bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.all.seconds -= took.Seconds()

	if own := l.subjects[subject]; own != nil && !ofOthers {
		own.seconds -= took.Seconds()
	}
}
