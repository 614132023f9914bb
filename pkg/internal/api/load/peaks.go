package load

import (
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
