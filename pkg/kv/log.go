package kv

import (
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quiet names a logger for code that is not ours and lets only entries from least on pass, save those that say
// nothing about this process: noise is how their messages end, since some begin with a member's id.
func quiet(lg *zap.Logger, name string, least zapcore.Level, noise ...string) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}
	return lg.Named(name).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return quietCore{Core: c, least: least, noise: noise}
	}))
}

type quietCore struct {
	zapcore.Core
	least zapcore.Level
	noise []string
}

func (c quietCore) Enabled(l zapcore.Level) bool { return l >= c.least && c.Core.Enabled(l) }

func (c quietCore) With(fields []zapcore.Field) zapcore.Core {
	c.Core = c.Core.With(fields)
	return c
}

func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level < c.least {
		return ce
	}
	for _, n := range c.noise {
		if strings.HasSuffix(e.Message, n) {
			return ce
		}
	}
	return c.Core.Check(e, ce)
}

// orNop spares callers a check.
func orNop(lg *zap.Logger) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}
	return lg
}
