package guardian

import (
	"encoding/json"
	"testing"
	"time"
)

func TestGuardian_BearsSilenceForAsLongAsWasSaidOfEachAttempt(t *testing.T) {
	w := newWatchList()
	w.applyMessage(Message{Attempt: &Attempt{ID: 1, Session: 7, Silence: 10 * time.Second}})
	w.applyMessage(Message{Attempt: &Attempt{ID: 2, Session: 7, Silence: time.Hour}})
	w.applyMessage(Message{Session: &Session{ID: 7, Renewed: time.Minute}})

	for now, want := range map[time.Duration][2]bool{
		time.Minute:                    {false, false},
		time.Minute + 11*time.Second:   {true, false},
		time.Minute + time.Hour + 1e+9: {true, true},
	} {
		if got := [2]bool{w.isOverdue(w.attempts[1], now), w.isOverdue(w.attempts[2], now)}; got != want {
			t.Errorf("at %s: overdue are %v, want %v", now, got, want)
		}
	}

	w.applyMessage(Message{Session: &Session{ID: 7, Renewed: 2 * time.Minute}})

	if w.isOverdue(w.attempts[1], 2*time.Minute+time.Second) {
		t.Error("overdue though its session was renewed")
	}
}

// After an upgrade, a daemon of the former version may start this version as its guardian.
func TestGuardian_UnderstandsADaemonThatSaysUntilWhenASessionIsBorne(t *testing.T) {
	w := newWatchList()

	for _, said := range []string{`{"ward":{"id":1,"RunID":"r1","Token":1,"session":7}}`, `{"session":{"id":7,"until":60000000000}}`} {
		var x Message
		if err := json.Unmarshal([]byte(said), &x); err != nil {
			t.Fatal(err)
		}
		w.applyMessage(x)
	}

	if w.isOverdue(w.attempts[1], time.Minute) || !w.isOverdue(w.attempts[1], time.Minute+1) {
		t.Error("it is not overdue from that instant on")
	}
}
