// Package oidclogin signs people in with OpenID Connect providers: with the authorization code flow and PKCE for the web, and
// with the device flow for the command line.
//
//	BeginWeb ──▶ URL of the provider + sealed state ──(browser)──▶ FinishWeb ──▶ Identity
//	BeginDevice ──▶ code for the person + sealed handle ──▶ PollDevice … PollDevice ──▶ Identity
//
// What is guaranteed:
//
//   - A login that is under way is in no memory and in no record. Its state, nonce and PKCE verifier, or its device code, are
//     in a sealed text that the browser or the command line keeps. Every node with the same key can finish the login.
//   - An Identity is returned only for an ID token that the provider signed for this client and, on the web, for this login.
//     The sealed text is valid for ten minutes, on the web for one answer of the provider on each node, and only for
//     the provider and the redirect URL that it was made for. Each provider has a redirect URL of its own.
//   - Providers and all of their endpoints use https, except on loopback.
//   - A provider that does not answer costs its own logins only. At most maxRequests requests to all providers are under way,
//     each for at most requestTimeout, and after a failed discovery the provider is left alone for retryAfter.
//   - Client secrets, codes and tokens of providers are in no error and in no log.
//
// What is not: whether the person may do anything. That is decided by the bindings of the subject and the groups.
// Two nodes that know different providers by the same name mix up their people; the settings of all nodes that
// serve the API must be the same.
//
// The package reads the files with client secrets at each login. It touches no keys of etcd.
package oidclogin
