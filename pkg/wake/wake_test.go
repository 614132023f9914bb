package wake

import "testing"

func TestSignal_IsSentOnceUntilItIsReceived(t *testing.T) {
	s := NewSignal()

	for range 3 {
		s.Send() // without a receiver, which must not block
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
