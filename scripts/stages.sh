# To be sourced by a script of many stages: each has a limit, and the end shows the seconds of all.
table=""

stage() {    # NAME LIMIT_S COMMAND...
    local name=$1 limit=$2 begun=$SECONDS status=0
    shift 2
    echo "== $name"
    timeout --kill-after=30 "$limit" "$@" || status=$?
    table+=$(printf '%-18s %6d s  %s' "$name" $((SECONDS - begun)) "$([ $status = 0 ] || echo "failed with $status")")$'\n'
    [ $status != 124 ] || echo "== $name took longer than $limit s"
    return $status
}

show_stages() {
    printf '== stages\n%s%-18s %6d s\n' "$table" all $SECONDS
}
trap show_stages EXIT
