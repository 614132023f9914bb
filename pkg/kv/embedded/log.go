package embedded

import (
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Within each sampleInterval, only the first sampleLines entries of etcd's logger with the same level and message pass.
const (
	sampleInterval = time.Second
	sampleLines    = 5
)

// sampled is a logger that limits how often it repeats a message. etcd has loops without a pause: a restarted member
// whose log was behind wrote "failed to publish local member" thousands of times within a second. Suppressed entries
// are counted. The next entry that passes has the count in its field "suppressed", and logSuppressed logs the
// remaining count.
type sampled struct {
	*zap.Logger
	suppressed *atomic.Int64
}

// newSampled returns a sampled logger that writes to lg.
func newSampled(lg *zap.Logger) sampled {
	suppressed := &atomic.Int64{}
	hook := zapcore.SamplerHook(func(_ zapcore.Entry, decision zapcore.SamplingDecision) {
		if decision&zapcore.LogDropped != 0 {
			suppressed.Add(1)
		}
	})

	return sampled{suppressed: suppressed, Logger: lg.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(countingCore{c, suppressed}, sampleInterval, sampleLines, 0, hook)
	}))}
}

// logSuppressed logs how many entries were suppressed since the last entry with a count. It logs nothing if there are
// none.
func (s sampled) logSuppressed() {
	if s.Logger != nil && s.suppressed.Load() > 0 {
		s.Warn("repeated log lines were suppressed") // the core adds how many
	}
}

// countingCore adds the count of suppressed entries to the next entry that it writes.
type countingCore struct {
	zapcore.Core
	suppressed *atomic.Int64
}

func (c countingCore) With(fields []zapcore.Field) zapcore.Core {
	c.Core = c.Core.With(fields)
	return c
}

// Check adds this core to the entry if the core below accepts it, so that Write is called.
func (c countingCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Core.Check(e, nil) == nil {
		return ce
	}
	return ce.AddCore(e, c)
}

// Write adds the field "suppressed" if entries were suppressed since the last one.
func (c countingCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if n := c.suppressed.Swap(0); n > 0 {
		fields = append(slices.Clone(fields), zap.Int64("suppressed", n))
	}
	return c.Core.Write(e, fields)
}
