package systemd

import (
	"fmt"
	"io"
	"os"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// IsJournal reports whether a writer is the stream to the journal with which the service manager has started this process
// (StandardError=journal). It returns false if the stream was redirected after the start.
func IsJournal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}

	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return false
	}

	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// WithPriority returns an encoder whose messages begin with their level in the form of sd-daemon(3). The journal removes it from the
// message, and makes it the field PRIORITY.
func WithPriority(e zapcore.Encoder) zapcore.Encoder { return priorityEncoder{e} }

// priorityEncoder embeds the encoder for its two dozen methods that add fields.
type priorityEncoder struct{ zapcore.Encoder }

var buffers = buffer.NewPool()

func (p priorityEncoder) Clone() zapcore.Encoder { return priorityEncoder{p.Encoder.Clone()} }

func (p priorityEncoder) EncodeEntry(e zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	text, err := p.Encoder.EncodeEntry(e, fields)
	if err != nil {
		return nil, err
	}
	defer text.Free()

	b := buffers.Get()
	b.AppendString(priorityOf(e.Level))
	_, err = b.Write(text.Bytes())

	return b, err
}

// priorityOf returns the prefix for a level.
func priorityOf(l zapcore.Level) string {
	switch {
	case l <= zapcore.DebugLevel:
		return "<7>"
	case l == zapcore.InfoLevel:
		return "<6>"
	case l == zapcore.WarnLevel:
		return "<4>"
	case l == zapcore.ErrorLevel:
		return "<3>"
	}

	return "<2>" // the process ends
}
