#!/bin/sh
# Does what a start-up script does with the metadata server, and prints one JSON line about it.
#
# usage: application.sh TOOL session STEP...
#        application.sh TOOL token         one token
#        application.sh TOOL many COUNT    so many tokens at once, a process each
#        application.sh TOOL stay FILE     token after token, until FILE exists
#
# TOOL is curl or wget.
set -u

root=http://$GCE_METADATA_HOST
account=$root/computeMetadata/v1/instance/service-accounts/default
cloud_platform=https://www.googleapis.com/auth/cloud-platform
# A scope of its own, so that this is no token that the proxy has from its start.
read_only=https://www.googleapis.com/auth/devstorage.read_only
tool=$1 mode=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# try BODY HEAD URL [OPTION]: asks with the retries that careful scripts ask for. $told is the option by which a refusal's
# body is kept; with it, wget would take a body that follows on a retry for the rest of the refusal's.
case $tool in
curl)
  version=$(curl --version | sed -n '1s/^curl \([^ ]*\).*/\1/p')
  try() {
    curl --silent --show-error "${4:---fail}" --retry 5 --max-time 20 --header 'Metadata-Flavor: Google' \
      --output "$1" --dump-header "$2" "$3" 2>>"$2"
  }
  told=--fail-with-body
  ;;
wget)
  version=$(wget --version | sed -n '1s/^GNU Wget \([^ ]*\).*/\1/p')
  try() {
    wget --tries=5 --waitretry=2 --timeout=20 --retry-on-http-error=429,500,503 --header='Metadata-Flavor: Google' \
      --output-document="$1" --server-response --output-file="$2" ${4:+"$4"} "$3"
  }
  told=--content-on-error
  ;;
esac

# fetch URL [OPTION]: prints the answer's body; on failure, all that was said. The head goes to $work/head.
fetch() {
  body=$(mktemp -p "$work")
  if try "$body" "$body.head" "$@"; then failed=; else failed=yes; fi
  cp "$body.head" "$work/head"
  cat "$body" ${failed:+"$body.head"}
  test -z "$failed"
}

# outcome COMMAND...: what it printed, as {"ok": ...} or {"error": ...}.
outcome() {
  if printed=$("$@"); then key=ok; else key=error; fi
  printf '{"%s":"%s"}' "$key" "$(printf %s "$printed" | tr -d '"\\' | tr '\n\r\t' '   ')"
}

token() {
  if body=$(fetch "$account/token${1:+?scopes=$1}"); then
    printf %s "$body" | sed -n 's/.*"access_token":"\([^"]*\)".*/\1/p'
  else
    printf %s "$body"
    return 1
  fi
}

detect() {
  fetch "$root/" >/dev/null && grep -qi '^ *metadata-flavor: google' "$work/head" && printf yes
}

# How long a value that does not change is watched before it is told again. Were the ETag that is sent back not the
# server's own, there would be no wait.
watch() {
  key=$root/computeMetadata/v1/instance/attributes/cluster-name
  fetch "$key" >/dev/null || return 1
  etag=$(sed -n 's/^ *[Ee][Tt][Aa][Gg]: *\([^ ]*\)/\1/p' "$work/head" | tr -d '\r')
  began=$(date +%s%N)
  fetch "$key?wait_for_change=true&timeout_sec=1&last_etag=$etag" || return 1
  waited=$((($(date +%s%N) - began) / 1000000))
  [ "$waited" -ge 900 ] || { printf ' was told again after %s ms, though nothing had changed' "$waited"; return 1; }
}

step() {
  case $1 in
  detect) detect ;;
  project) fetch "$root/computeMetadata/v1/project/project-id" ;;
  token) token ;;
  account) fetch "$account/email" ;;
  scoped | refresh) token "$cloud_platform" ;;
  identity) fetch "$account/identity?audience=https://example.com" "$told" ;;
  universe) fetch "$root/computeMetadata/v1/universe/universe-domain" ;;
  watch) watch ;;
  esac
}

session() {
  separator=
  printf '"steps":{'
  for name; do
    printf '%s"%s":%s' "$separator" "$name" "$(outcome step "$name")"
    separator=,
  done
  printf '}'
}

many() {
  for number in $(seq "$1"); do
    (outcome token "$read_only" >"$work/$number") &
  done
  wait
  tally "$work"/[0-9]*
}

stay() {
  while [ ! -e "$1" ]; do
    outcome token "$read_only" && echo
  done >"$work/1"
  tally "$work/1"
}

# tally FILE...: the outcomes in files, one or more in each, as lists.
tally() {
  for key in ok error; do
    list=$(sed 's/}{/}\n{/g' "$@" | sed -n "s/^{\"$key\":\(.*\)}\$/\1/p" | paste -sd, -)
    case $key in ok) printf '"tokens":[%s]' "$list" ;; error) printf ',"errors":[%s]' "$list" ;; esac
  done
}

case $mode in
session) seen=$(session "$@") ;;
token) seen=$(many 1) ;;
many) seen=$(many "$1") ;;
stay) seen=$(stay "$1") ;;
esac
printf '{"version":"%s",%s}\n' "$version" "$seen"
