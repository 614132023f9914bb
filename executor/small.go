package executor

import "go.uber.org/zap"

func orNop(l *zap.Logger) *zap.Logger {
	if l == nil {
		return zap.NewNop()
	}
	return l
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// poke leaves a word in a one-slot trigger.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
