package store_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLoginKey_IsOneForAllNodes(t *testing.T) {
	w := newWorld(t)

	var asked sync.WaitGroup
	var keys [4][record.LoginKeyBytes]byte
	for i := range keys {
		asked.Go(func() {
			var err error
			if keys[i], err = w.LoginKey(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()

	for _, key := range keys {
		if key != keys[0] || key == [record.LoginKeyBytes]byte{} {
			t.Errorf("the nodes have the keys %x", keys)
			break
		}
	}
}

func TestLoginKey_RefusesARecordThatIsNone(t *testing.T) {
	for _, value := range []string{`{"key":"AAAA"}`, `{`, `{}`} {
		w := newWorld(t)
		if _, err := w.etcd.Put(t.Context(), w.Keys().LoginKey(), value); err != nil {
			t.Fatal(err)
		}
		if _, err := w.LoginKey(t.Context()); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
