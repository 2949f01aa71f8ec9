#!/bin/sh
# sysroot.sh ARCHITECTURE DIRECTORY : what an image of another architecture takes from Debian, unpacked and not installed, so that
# nothing of it runs here. The packages are of the release and the mirrors that apt is set up for; dpkg's database beside them
# tells scanners what each file is of.
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
