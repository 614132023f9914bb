package kv

import (
	"bytes"
	"errors"
	"hash/maphash"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What protobuf adds around a part of a request, at most: tags, lengths, numbers, flags.
const (
	txnBytes     = 12
	compareBytes = 40
	getBytes     = 112
	writeBytes   = 48
)

// footprint is what a transaction touches and what it weighs, over both its branches and all that is nested in it.
type footprint struct {
	keys  []touched
	spans []span
	// depth is what etcd counts against its limit of operations: per level the larger of compares, then and else.
	depth int
	// bytes is no less than the transaction takes in a request.
	bytes int
	// puts says that it may need space, so that an etcd over its quota refuses it.
	puts bool
}

// touched is a key, written or only read or compared.
type touched struct {
	key    []byte
	hash   uint64
	writes bool
	lock   *lock // set while the transaction waits for its turn or has it
}

// span is a range of keys, written or only read or compared. An end of nil means that there is none.
type span struct {
	start, end []byte
	writes     bool
	of         *ticket
}

func (s span) contains(key []byte) bool {
	return bytes.Compare(s.start, key) <= 0 && (s.end == nil || bytes.Compare(key, s.end) < 0)
}

func (s span) overlapsWith(o span) bool {
	return (o.end == nil || bytes.Compare(s.start, o.end) < 0) && (s.end == nil || bytes.Compare(o.start, s.end) < 0)
}

// keySeed spreads the keys over the table of locks, differently in each process.
var keySeed = maphash.MakeSeed()

var errNoOperation = errors.New("an operation is neither get, put, delete nor transaction")

func (f *footprint) reset() {
	clear(f.keys)
	clear(f.spans)
	*f = footprint{keys: f.keys[:0], spans: f.spans[:0]}
}

func (f *footprint) measureTxn(t Txn) error {
	depth, err := f.addTxn(t.If, t.Then, t.Else)
	f.depth = depth
	return err
}

func (f *footprint) addTxn(cmps []clientv3.Cmp, then, els []clientv3.Op) (depth int, err error) {
	f.bytes += txnBytes
	for _, c := range cmps {
		p := c.GetCompare()
		f.addKey(p.Key, p.RangeEnd, false)
		f.bytes += compareBytes + len(p.Key) + len(p.RangeEnd) + len(p.GetValue())
	}

	nested, err := f.addOps(then)
	if err != nil {
		return 0, err
	}

	nestedElse, err := f.addOps(els)

	return max(len(cmps), len(then), len(els)) + max(nested, nestedElse), err
}

func (f *footprint) addOps(ops []clientv3.Op) (depth int, err error) {
	for i := range ops {
		op := &ops[i] // it is large
		key, end := op.KeyBytes(), op.RangeBytes()
		f.bytes += len(key) + len(end)

		switch {
		case op.IsPut():
			f.puts = true
			f.bytes += writeBytes + len(op.ValueBytes())
			f.addKey(key, nil, true)
		case op.IsDelete():
			f.bytes += writeBytes
			f.addKey(key, end, true)
		case op.IsGet():
			f.bytes += getBytes
			f.addKey(key, end, false)
		case op.IsTxn():
			cmps, then, els := op.Txn()
			nested, err := f.addTxn(cmps, then, els)
			if err != nil {
				return 0, err
			}

			depth = max(depth, nested)
		default:
			return 0, errNoOperation
		}
	}

	return depth, nil
}

func (f *footprint) addKey(key, end []byte, writes bool) {
	switch {
	case end == nil:
		f.keys = append(f.keys, touched{key: key, hash: maphash.Bytes(keySeed, key), writes: writes})
	// One zero byte means "all from the key on", and so does an end that is empty but there, in the process.
	case len(end) == 0 || len(end) == 1 && end[0] == 0:
		f.spans = append(f.spans, span{start: key, writes: writes})
	case bytes.Compare(key, end) < 0:
		f.spans = append(f.spans, span{start: key, end: end, writes: writes})
	}
}
