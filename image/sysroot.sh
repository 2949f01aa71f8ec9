#!/bin/sh
# sysroot.sh ARCHITECTURE DIRECTORY: unpacks the Debian packages for an image of another
# architecture. The packages are not installed, so none of their code runs here. Release and mirrors
# are those of apt's configuration. The dpkg database tells scanners the package of each file.
set -eu
architecture=${1:?ARCHITECTURE} out=${2:?DIRECTORY}
packages="dash coreutils tini libc6 libgcc-s1 libstdc++6 libatomic1"
mkdir -p "$out/apt/lists/partial" "$out/apt/archives/partial" "$out/var/lib/dpkg/info" "$out/debs"
: >"$out/apt/status"
apt() {
  apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o Dir::State::Lists="$out/apt/lists" \
    -o Dir::Cache="$out/apt" -o Dir::State::status="$out/apt/status" -o APT::Sandbox::User=root "$@"
}
apt update
# shellcheck disable=SC2086
(cd "$out/debs" && apt download $packages)
database=$out/var/lib/dpkg
echo 1 >"$database/info/format"
for deb in "$out"/debs/*.deb; do
  dpkg-deb -x "$deb" "$out"
  name=$(dpkg-deb -f "$deb" Package)
  case $(dpkg-deb -f "$deb" Multi-Arch) in same) list=$name:$architecture ;; *) list=$name ;; esac
  dpkg-deb --fsys-tarfile "$deb" | tar -tf - | sed 's,^\.,,; s,\(.\)/$,\1,; s,^/$,/.,' >"$database/info/$list.list"
  { dpkg-deb -f "$deb" Package Version Source Architecture Multi-Arch Maintainer Description; echo 'Status: install ok installed'; echo; } >>"$database/status"
done
rm -rf "$out/apt" "$out/debs"
