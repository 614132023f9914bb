package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

func TestIsJournal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}

	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", stat.Dev, stat.Ino):   true,
		fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1): false, // that of another process, or standard error was redirected
		"": false,
	} {
		t.Setenv("JOURNAL_STREAM", stream)
		if got := IsJournal(file); got != want {
			t.Errorf("JOURNAL_STREAM=%q: %t, want %t", stream, got, want)
		}
		if IsJournal(&strings.Builder{}) {
			t.Errorf("JOURNAL_STREAM=%q: a buffer is the journal", stream)
		}
	}
}

func TestWithPriority_BeginsEachMessageWithItsLevel(t *testing.T) {
	var out strings.Builder
	enc := zapcore.EncoderConfig{MessageKey: "msg", NameKey: "logger", EncodeName: zapcore.FullNameEncoder, LineEnding: "\n"}
	log := zap.New(zapcore.NewCore(WithPriority(zapcore.NewJSONEncoder(enc)), zapcore.AddSync(&out), zapcore.DebugLevel))

	log.Debug("a")
	log.Info("b", zap.Int("n", 1))
	log.Named("part").With(zap.String("task", "x")).Warn("c")
	log.Error("d\ne")
	log.DPanic("f")

	want := `<7>{"msg":"a"}
<6>{"msg":"b","n":1}
<4>{"logger":"part","msg":"c","task":"x"}
<3>{"msg":"d\ne"}
<2>{"msg":"f"}
`
	if got := out.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
