package kv

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watchMethod is the stream that carries watches.
const watchMethod = "/etcdserverpb.Watch/Watch"

// haltWatches makes a watch stream that breaks end its watches.
//
// The etcd client would open another stream by itself, and go on from the revision of the last response that each watch
// got. That may be too far: a progress notice goes to every watch of its stream, also to one that was opened after the
// request was made and has still to catch up. If the stream breaks then, what the watch had not been told yet is never
// told. The client reopens after Unavailable and Internal, and ends its watches after any other code. Follow then goes on
// from the revision that it has told.
func haltWatches(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != watchMethod {
		return s, err // nothing is told yet: the client may try again
	}
	return haltingStream{s}, nil
}

type haltingStream struct{ grpc.ClientStream }

func (s haltingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal:
		return status.Error(codes.Aborted, status.Convert(err).Message())
	}

	return err
}
