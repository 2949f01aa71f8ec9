import { readFileSync } from 'node:fs';

/** A row of `/proc/PID/mountinfo`: man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html */
export interface Mount {
  /** `major:minor` of its file system. */
  readonly device: string;
  /** The mounted directory of the file system. */
  readonly root: string;
  /** The mount point. */
  readonly point: string;
  readonly type: string;
}

/** Identifies a file by its file system, independent of containers. */
export interface Place {
  readonly device: string;
  readonly path: string;
  readonly type: string;
}

export function parseMounts(text: string): Mount[] {
  return text.split('\n').flatMap((line) => {
    const words = line.split(' ');
    const [, , device, root, point] = words;
    const type = words[words.indexOf('-') + 1];
    if (device === undefined || root === undefined || point === undefined) return [];
    return [{ device, root: unescape(root), point: unescape(point), type: type ?? '' }];
  });
}

/** Undefined if they cannot be read. */
export function mountsOf(process: string): Mount[] | undefined {
  try {
    return parseMounts(readFileSync(`${process}/mountinfo`, 'utf8'));
  } catch {
    return undefined;
  }
}

export const isBelow = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(directory === '/' ? '/' : `${directory}/`);

/** The place of an absolute path in these mounts. If mounts are stacked, the last counts. */
export function placeOf(mounts: readonly Mount[], path: string): Place | undefined {
  let found: Mount | undefined;
  for (const mount of mounts) {
    const isDeeper = mount.point.length >= (found?.point.length ?? 0);
    if (isDeeper && isBelow(path, mount.point)) found = mount;
  }
  if (!found) return undefined;
  const rest = path.slice(found.point === '/' ? 0 : found.point.length);
  const inside = found.root === '/' ? rest : found.root + rest;
  return { device: found.device, path: inside.replace(/(.)\/+$/, '$1') || '/', type: found.type };
}

/** In mountinfo, space, tab, newline and backslash are three octal digits. */
const unescape = (text: string): string =>
  text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
