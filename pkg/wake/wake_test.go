package wake

import "testing"

func TestSignal_IsSentOnceUntilItIsReceived(t *testing.T) {
	s := NewSignal()

	for range 3 {
		s.Send() // must not block without a receiver
	}

	<-s

	select {
	case <-s:
		t.Error("a signal was received twice")
	default:
	}

	s.Send()
	<-s
}
