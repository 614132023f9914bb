package load

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

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
