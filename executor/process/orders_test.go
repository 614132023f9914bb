package process

import "testing"

func TestOrders_OnFirst(t *testing.T) {
	pause := func(o *Orders) { o.SetPaused(true) }
	kill := func(o *Orders) { o.Kill(Kill{Cause: CauseCancel}) }

	for _, c := range []struct {
		name          string
		before, after []func(*Orders)
		calls         int
	}{
		{"no order", nil, nil, 0},
		{"a kill", nil, []func(*Orders){kill}, 1},
		{"a pause", nil, []func(*Orders){pause}, 1},
		{"several orders", nil, []func(*Orders){pause, kill, kill}, 1},
		{"an order that was given before", []func(*Orders){kill}, nil, 1},
		{"orders before and after", []func(*Orders){pause}, []func(*Orders){kill}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := NewOrders()
			for _, order := range c.before {
				order(o)
			}

			calls := 0
			o.OnFirst(func() { calls++ })
			for _, order := range c.after {
				order(o)
			}

			if calls != c.calls {
				t.Errorf("%d calls, want %d", calls, c.calls)
			}
		})
	}

	t.Run("ended", func(t *testing.T) {
		o := NewOrders()
		o.OnFirst(func() { t.Error("called after its end") })
		o.OnFirst(nil)
		kill(o)
	})
}

// Orders may be given before anybody receives them.
func TestOrders_AreKeptUntilTheyAreReceived(t *testing.T) {
	o := NewOrders()
	o.Kill(Kill{Cause: CauseCancel, Grace: 2})
	o.Kill(Kill{Cause: CauseShutdown, Grace: 1})
	o.SetPaused(true)

	<-o.CalledOff()
	<-o.PauseChanged()
	if first, second := <-o.Killed(), <-o.Killed(); first.Cause != CauseCancel || second.Cause != CauseShutdown {
		t.Errorf("kills %v, %v", first, second)
	}
}
