package load

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

const (
	// maxQuestions is for how many questions the peaks of the last load are remembered.
	maxQuestions = 64
	// maxPeaks is how many peaks of a question are remembered: as many as one request can ask for.
	maxPeaks = 20
)

// peakMemory remembers at which minutes the peaks of the last loads are. The owners are asked for what makes the runs of
// these minutes together with the runs of all minutes. As peaks rarely change, they need not be asked a second time.
//
// The zero value is empty. It is safe for concurrent use.
type peakMemory struct {
	mu    sync.Mutex
	peaks map[string]knownPeaks // by question
}

// knownPeaks are the peaks of a question.
type knownPeaks struct {
	at   []int64 // the beginnings of the minutes, in Unix milliseconds
	used time.Time
}

// minuteMS is a minute in milliseconds.
const minuteMS = 60_000

// expect returns the minutes of a range that are probably its peaks.
func (m *peakMemory) expect(question string, l *readmodel.LoadRange) (minutes []int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	known, ok := m.peaks[question]
	if !ok {
		return nil
	}
	known.used = time.Now()
	m.peaks[question] = known

	for _, at := range known.at {
		if minute := (at - l.From) / minuteMS; at >= l.From && minute < int64(l.Minutes) {
			minutes = append(minutes, int(minute))
		}
	}

	return minutes
}

// remember remembers the peaks of a range.
func (m *peakMemory) remember(question string, l *readmodel.LoadRange, peaks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if _, ok := m.peaks[question]; !ok && len(m.peaks) >= maxQuestions {
		m.dropOldest()
	}
	if m.peaks == nil {
		m.peaks = map[string]knownPeaks{}
	}

	known := knownPeaks{used: time.Now()}
	for _, minute := range peaks[:min(len(peaks), maxPeaks)] {
		known.at = append(known.at, l.From+int64(minute)*minuteMS)
	}
	m.peaks[question] = known
}

// dropOldest drops the question that was not asked for the longest time. The caller must hold mu.
func (m *peakMemory) dropOldest() {
	oldest, found := "", false
	for question, known := range m.peaks {
		if !found || known.used.Before(m.peaks[oldest].used) {
			oldest, found = question, true
		}
	}

	delete(m.peaks, oldest)
}

// containsAll reports whether a list contains all minutes of another one.
func containsAll(list, minutes []int) bool {
	return !slices.ContainsFunc(minutes, func(minute int) bool { return !slices.Contains(list, minute) })
}

const (
	// shareFor is how long an answer is given again. It says how old it is. Counting the ticks of a million tasks takes the
	// owners much longer than most questions. It is not longer than the time for which an ask.Asker remembers that a caller
	// has written something, so nobody gets an answer from before what they have written.
	shareFor = 10 * time.Second
	// maxAnswers is how many answers are kept. Each takes some 12 KiB.
	maxAnswers = 64
)

// answerMemory keeps the last answers. The zero value is empty. It is safe for concurrent use.
type answerMemory struct {
	mu   sync.Mutex
	kept map[string]*loadAnswer
}

// answerKey identifies the load of a question in a range, apart from the minutes for which it has makers.
func answerKey(question string, l *readmodel.LoadRange) string {
	return fmt.Sprintf("%d %d %s", l.From, l.Minutes, question)
}

// find returns the answer to a question, if it is fresh; otherwise nil.
func (m *answerMemory) find(question string, l *readmodel.LoadRange) *loadAnswer {
	m.mu.Lock()
	defer m.mu.Unlock()

	a := m.kept[answerKey(question, l)]
	if a == nil || time.Since(a.at) > shareFor {
		return nil
	}

	return a
}

// keep keeps an answer, unless shards are missing in it.
func (m *answerMemory) keep(question string, l *readmodel.LoadRange, a *loadAnswer) {
	if len(a.info.Missing) > 0 {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	for key, old := range m.kept {
		if time.Since(old.at) > shareFor {
			delete(m.kept, key)
		}
	}
	if m.kept == nil || len(m.kept) >= maxAnswers {
		m.kept = map[string]*loadAnswer{}
	}

	m.kept[answerKey(question, l)] = a
}
