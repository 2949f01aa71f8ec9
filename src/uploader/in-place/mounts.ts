import { readFileSync } from 'node:fs';

/**
 * One row of `/proc/PID/mountinfo`
 * (https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html).
 */
export interface Mount {
  /** `major:minor` of its file system. */
  readonly device: string;
  /** What of the file system is mounted. */
  readonly root: string;
  /** Where. */
  readonly point: string;
  readonly type: string;
}

/** A file by its file system, whatever it is called in which container. */
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

/** Undefined where they cannot be read. */
export function mountsOf(process: string): Mount[] | undefined {
  try {
    return parseMounts(readFileSync(`${process}/mountinfo`, 'utf8'));
  } catch {
    return undefined;
  }
}

/** Whether a path is this directory or below it. */
export const isBelow = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(directory === '/' ? '/' : `${directory}/`);

/**
 * Where an absolute path of these mounts leads to. Of mounts over one another the last one counts.
 */
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

/** Space, tab, newline and backslash are three octal digits there. */
const unescape = (text: string): string =>
  text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
