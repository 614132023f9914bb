package scheduler

import (
	"runtime"
	"sync"
	"testing"
)

func TestShared_OneValueOfATextForAsLongAsItIsUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newShared(newTiming)
	text := []byte(`"schedule":"@hourly","timezone":"UTC"`)
	v, err := s.get(text)
	w.ok(err)
	s.forget(v.text) // of one before it, whose clean-up comes late
	if again, err := s.get(text); again != v || err != nil {
		t.Errorf("a second value of one text, %v", err)
	}
	if _, err := s.get([]byte(`"schedule":"never"`)); err == nil || len(s.byText) != 1 {
		t.Errorf("what cannot be read: %v; kept are %d", err, len(s.byText))
	}
	runtime.KeepAlive(v)
	w.eventually("it is forgotten", func() bool {
		runtime.GC()
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.byText) == 0
	})
}

// Values come and go while others take them up.
func TestShared_ManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newShared(newTiming)
	texts := [][]byte{[]byte(`"schedule":"@hourly"`), []byte(`"schedule":"@daily"`)}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 400 {
				text := texts[i/7%2]
				v, err := s.get(text)
				if err != nil || v.text != string(text) {
					t.Errorf("of %s: %v, %v", text, v, err)
					return
				}
				if i%40 == 0 {
					runtime.GC()
				}
				if again, _ := s.get(text); again != v {
					t.Error("two values of one text")
				}
				runtime.KeepAlive(v)
			}
		})
	}
	wg.Wait()
}
