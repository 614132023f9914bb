package tasks

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

func TestReadLines_HalfALineIsNone(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		what string
		Body io.Reader
		want []string
	}{
		{"whole", strings.NewReader("a\n\n b \r\nc"), []string{"a", "", "b", "c"}},
		{"ended", strings.NewReader("a\n"), []string{"a", ""}},
		{"broken", io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(io.ErrUnexpectedEOF)), []string{"a", "error bad_json"}},
		{"long", strings.NewReader(long + "\nb\n" + long + "x\nc"), []string{long, "b", "error too_large", "c"}},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("a\nb")), []string{"a", "b"}},
	} {
		if got := readLines(c.Body); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %.100q, want %.100q", c.what, got, c.want)
		}
	}
}

// readLines returns the lines of a body as a batch reads them, and the codes of errors.
func readLines(body io.Reader) (all []string) {
	for in := (&lineReader{in: bufio.NewReader(body)}); !in.over; {
		line, err := in.nextLine()
		if err != nil {
			line = []byte("error " + httpapi.AsFailure(err).Code)
		}
		all = append(all, string(line))
	}

	return all
}
