package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"strconv"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
)

// groupName is the group whose members may use the socket without a token, if the
// host has such a group.
const groupName = "carillon"

// Administrators determines which users of this host need no token on the unix socket.
type Administrators struct {
	gid     uint32 // the number of groupName
	noGroup bool   // the host has no such group
}

// LookupAdministrators looks up the group. If that fails, only root and the daemon's user need no token.
func LookupAdministrators(log *zap.Logger) Administrators {
	group, err := user.LookupGroup(groupName)
	if err != nil {
		var unknown user.UnknownGroupError
		if !errors.As(err, &unknown) {
			log.Warn("cannot look up the group of the unix socket; its members need a token", zap.String("group", groupName), zap.Error(err))
		}
		return Administrators{noGroup: true}
	}

	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return Administrators{noGroup: true}
	}

	return Administrators{gid: uint32(gid)}
}

// Peer returns the user who has opened a connection to the unix socket, and true if that
// user needs no token: root and the daemon's own user can do everything that the daemon
// can, and the members of the group have been given the same by the host's administrator.
func (a Administrators) Peer(c net.Conn) (uid uint32, ok bool) {
	uid, ok = connlimit.PeerUID(c)
	if !ok {
		return 0, false
	}

	own := uid == 0 || int(uid) == os.Geteuid()
	return uid, own || !a.noGroup && connlimit.PeerInGroup(c, a.gid)
}

// ConnContext adds the connection to the context of its requests and, if a user of this host who needs no token
// has opened it, that user.
func (a Administrators) ConnContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.Context(ctx, c)
	if uid, ok := a.Peer(connlimit.Inner(c)); ok {
		ctx = api.WithTrustedUser(ctx, uid)
	}
	return ctx
}
