package definition

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestCache_OneValueOfATextForAsLongAsItIsUsed(t *testing.T) {
	t.Parallel()
	s := NewCache(NewTiming)
	text := []byte(`"schedule":"@hourly","timezone":"UTC"`)

	v, err := s.Get(text)
	if err != nil {
		t.Fatal(err)
	}

	s.forgetUnused(v.Text) // a late cleanup of an earlier value of the same text

	if again, err := s.Get(text); again != v || err != nil {
		t.Errorf("a second value of one text, %v", err)
	}

	if _, err := s.Get([]byte(`"schedule":"never"`)); err == nil || len(s.byText) != 1 {
		t.Errorf("what cannot be read: %v; kept are %d", err, len(s.byText))
	}

	runtime.KeepAlive(v)

	// A cleanup runs some time after the collection that found its value unused.
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		runtime.GC()

		s.mu.Lock()
		left := len(s.byText)
		s.mu.Unlock()

		if left == 0 {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("%d unused values are still kept", left)
		}
	}
}

// Values come and go while other goroutines use them.
func TestCache_ManyAtOnce(t *testing.T) {
	t.Parallel()
	s := NewCache(NewTiming)
	texts := [][]byte{[]byte(`"schedule":"@hourly"`), []byte(`"schedule":"@daily"`)}
	var wg sync.WaitGroup

	for range 4 {
		wg.Go(func() {
			for i := range 400 {
				text := texts[i/7%2]
				v, err := s.Get(text)
				if err != nil || v.Text != string(text) {
					t.Errorf("of %s: %v, %v", text, v, err)
					return
				}

				if i%40 == 0 {
					runtime.GC()
				}

				if again, _ := s.Get(text); again != v {
					t.Error("two values of one text")
				}

				runtime.KeepAlive(v)
			}
		})
	}

	wg.Wait()
}
