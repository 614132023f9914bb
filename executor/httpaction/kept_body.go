package httpaction

import (
	"io"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/spool"
)

// keptBody receives a response, without the values of secrets, of which the end is kept for the attempt's record, and
// all of it in the spool if that is asked for.
type keptBody struct {
	mask.Writer
	tail   tailWriter
	out    *spool.Output // nil: it is not stored
	counts int64         // bytes that were written, after masking
	isCut  bool          // the response was longer
}

// begin makes k ready for a response. out may be nil.
func (k *keptBody) begin(values *mask.Masker, out *spool.Output, stores bool) {
	*k = keptBody{tail: tailWriter{most: tailBytes}}
	if stores {
		k.out = out
	}

	k.Writer.Begin(values, masked{k})
}

// masked receives what a keptBody keeps.
type masked struct{ to *keptBody }

func (m masked) Write(b []byte) (int, error) {
	k := m.to
	k.counts += int64(len(b))
	if k.out != nil {
		_, _ = k.out.Write(b) // never fails; see spool.Output.Summary
	}

	return k.tail.Write(b)
}

// copyFrom keeps a response that has been buffered.
func (k *keptBody) copyFrom(b *bodyBuffer) error {
	r, err := b.reader()
	if err != nil {
		return err
	}

	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)
	_, err = io.CopyBuffer(struct{ io.Writer }{k}, struct{ io.Reader }{r}, *buf)

	return err
}

// end returns the end of the response, its length, and whether parts of it were not stored. Nothing may be written
// afterwards.
func (k *keptBody) end() (tail []byte, length int64, truncated bool) {
	if k.isCut {
		k.MaskCut()
	}
	_ = k.Close() // masked has no errors

	if k.out == nil {
		return k.tail.last, k.counts, k.counts > keptOfSuccess
	}

	return k.tail.last, k.counts, k.out.Summary().Truncated
}
