package record

// LoginKeyBytes is the length of the key that seals logins which are under way and the cookies of sessions.
const LoginKeyBytes = 32

// LoginKey is the record of that key.
type LoginKey struct {
	Key []byte `json:"key"`
}
