package kv

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watchMethod is the gRPC method of the streams that carry watches.
const watchMethod = "/etcdserverpb.Watch/Watch"

// haltWatches is an interceptor that makes all watches of a gRPC stream end when the stream breaks.
//
// Otherwise the etcd client would open a new stream and continue each watch after the revision of its last response.
// That can skip events. A progress notification goes to every watch of the stream, including one that was opened
// after the progress was requested and that still has to catch up. If the stream breaks then, the client continues
// that watch after the revision of the notification, and never delivers the events before it (G16).
//
// The client reopens a stream after the codes Unavailable and Internal, and ends the watches after any other code.
// Follow then resumes from the last revision that it has delivered.
func haltWatches(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != watchMethod {
		return s, err // no watch has received anything yet, so the client may retry
	}
	return haltingStream{s}, nil
}

// haltingStream is a watch stream whose errors the etcd client does not retry.
type haltingStream struct{ grpc.ClientStream }

// RecvMsg replaces the codes after which the etcd client would reopen the stream by Aborted.
func (s haltingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal:
		return status.Error(codes.Aborted, status.Convert(err).Message())
	}

	return err
}
