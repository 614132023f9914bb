package kv

import (
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// QuietLogger returns a named logger for code of etcd. It drops entries below the level least, and entries whose message
// ends with one of the texts in noise, because these say nothing about the health of this process. The end is
// compared because some messages begin with the id of a member. A nil lg results in a logger that drops everything.
func QuietLogger(lg *zap.Logger, name string, least zapcore.Level, noise ...string) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}

	return lg.Named(name).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return quietCore{Core: c, least: least, noise: noise}
	}))
}

// quietCore implements QuietLogger.
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

// Check drops the entries that the core does not accept.
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

// orNop returns lg, or a logger that drops everything if lg is nil.
func orNop(lg *zap.Logger) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}
	return lg
}
