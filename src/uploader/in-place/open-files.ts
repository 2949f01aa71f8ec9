import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { isBelow, type Mount, mountsOf, type Place, placeOf } from '../restore/mounts.ts';

/** The target of a search: a directory and its subtree, a file, or a block device by its number. */
export interface Sought {
  /** Absolute, without links. */
  readonly path: string;
  /** `rdev` of a block device. */
  readonly deviceNumber?: number;
}

/** Something that uses the target. */
export interface Use {
  /** `process 17 (postgres)`, `loop device loop3`. */
  readonly who: string;
  readonly path: string;
}

export interface OpenFiles {
  /** The first uses. */
  readonly uses: readonly Use[];
  /** Processes that this user may not inspect. */
  readonly unseenProcesses: number;
  /** False if only the processes of this container are visible. */
  readonly seesWholeMachine: boolean;
}

const USES_MAX = 10;
/** Processes that are inspected between two turns of the event loop. */
const TURN_PROCESSES = 64;
/** `PROC_PID_INIT_INO` of the kernel (include/linux/proc_ns.h): the machine's PID namespace. */
const MACHINE_PIDS = 'pid:[4026531836]';
/** Requests to such a file system may hang forever. */
const IS_REMOTE = /^(nfs|cifs|smb|fuse|ceph|9p|lustre|glusterfs|afs)/;
const DELETED = / \(deleted\)$/;

/**
 * Finds processes that use the target: as an open or mapped file, as their program, or as their
 * directory. Also finds processes in other containers, because it compares file systems and paths.
 * Makes no request to a remote file system.
 */
export async function findOpenFiles(
  sought: Sought,
  { signal, proc = '/proc', sys = '/sys' }: { signal: AbortSignal; proc?: string; sys?: string },
): Promise<OpenFiles> {
  const own = mountsOf(`${proc}/self`) ?? [];
  const place = placeOf(own, sought.path);
  const search = new Search(sought, place, proc);
  search.addKernelUses(own, sys);
  const processes = namesIn(proc).filter((name) => /^\d+$/.test(name));
  for (const [i, pid] of processes.entries()) {
    if (i % TURN_PROCESSES === 0) await setImmediate();
    signal.throwIfAborted();
    search.lookAt(Number(pid));
  }
  return {
    uses: search.uses,
    unseenProcesses: search.unseen,
    seesWholeMachine: linkOf(`${proc}/self/ns/pid`) === MACHINE_PIDS,
  };
}

class Search {
  readonly uses: Use[] = [];
  unseen = 0;
  readonly #sought: Sought;
  readonly #place: Place | undefined;
  readonly #proc: string;
  /** Keys are numbers of mount namespaces. */
  readonly #mounts = new Map<string, readonly Mount[]>();
  readonly #ancestors: ReadonlySet<number>;

  constructor(sought: Sought, place: Place | undefined, proc: string) {
    this.#sought = sought;
    this.#place = place;
    this.#proc = proc;
    this.#ancestors = ancestorsOf(proc, process.ppid);
  }

  /** Loop devices and swap use a file without a process. */
  addKernelUses(own: readonly Mount[], sys: string): void {
    for (const name of namesIn(`${sys}/block`)) {
      const file = textOf(`${sys}/block/${name}/loop/backing_file`)?.trim().replace(DELETED, '');
      if (file && this.#isSought(own, file)) this.#add(`loop device ${name}`, file);
    }
    const swaps = (textOf(`${this.#proc}/swaps`) ?? '').split('\n').slice(1);
    for (const [file = ''] of swaps.map((line) => line.split(' '))) {
      if (file.startsWith('/') && this.#isSought(own, file)) this.#add('swap', file);
    }
  }

  lookAt(pid: number): void {
    if (pid === process.pid) return;
    const path = `${this.#proc}/${pid}`;
    const namespace = linkOf(`${path}/ns/mnt`);
    const mounts = namespace === undefined ? undefined : this.#mountsIn(namespace, path);
    const descriptors = mounts && listing(`${path}/fd`);
    if (!mounts || !descriptors) {
      // The process may have ended meanwhile.
      if (namesIn(path).length > 0) this.unseen++;
      return;
    }
    const links = descriptors.map((number) => `${path}/fd/${number}`);
    const places = this.#ancestors.has(pid) ? ['exe'] : ['exe', 'cwd', 'root'];
    for (const link of [...links, ...places.map((name) => `${path}/${name}`)]) {
      const file = linkOf(link)?.replace(DELETED, '');
      if (!file?.startsWith('/')) continue;
      if (this.#isSought(mounts, file) || this.#isDevice(mounts, file, link)) {
        this.#add(this.#nameOf(pid), file);
        return;
      }
    }
    const mapped = this.#mapped(path, mounts);
    if (mapped !== undefined) this.#add(this.#nameOf(pid), mapped);
  }

  #add(who: string, path: string): void {
    if (this.uses.length < USES_MAX) this.uses.push({ who, path });
  }

  #nameOf(pid: number): string {
    const command = textOf(`${this.#proc}/${pid}/comm`)?.trim();
    return `process ${pid}${command ? ` (${command})` : ''}`;
  }

  #mountsIn(namespace: string, process: string): readonly Mount[] | undefined {
    const known = this.#mounts.get(namespace) ?? mountsOf(process);
    if (known) this.#mounts.set(namespace, known);
    return known;
  }

  #isSought(mounts: readonly Mount[], file: string): boolean {
    const found = this.#place && placeOf(mounts, file);
    if (!found || found.device !== this.#place?.device) return false;
    return isBelow(found.path, this.#place.path);
  }

  #isDevice(mounts: readonly Mount[], file: string, link: string): boolean {
    const { deviceNumber } = this.#sought;
    if (deviceNumber === undefined) return false;
    if (IS_REMOTE.test(placeOf(mounts, file)?.type ?? '')) return false;
    const stat = statSync(link, { throwIfNoEntry: false });
    return stat?.isBlockDevice() === true && stat.rdev === deviceNumber;
  }

  #mapped(process: string, mounts: readonly Mount[]): string | undefined {
    const files = new Set<string>();
    for (const line of (textOf(`${process}/maps`) ?? '').split('\n')) {
      const at = line.indexOf('/');
      if (at >= 0) files.add(line.slice(at).replace(DELETED, ''));
    }
    return [...files].find((file) => this.#isSought(mounts, file));
  }
}

/** The shell that started this process may stand in the target without an open file there. */
function ancestorsOf(proc: string, parent: number): ReadonlySet<number> {
  const ancestors = new Set<number>();
  for (let pid = parent; pid > 0 && !ancestors.has(pid);) {
    ancestors.add(pid);
    const stat = textOf(`${proc}/${pid}/stat`) ?? '';
    // The name in brackets may contain any character.
    pid = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1] ?? 0);
  }
  return ancestors;
}

function linkOf(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}

function textOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

function listing(path: string): string[] | undefined {
  try {
    return readdirSync(path);
  } catch {
    return undefined;
  }
}

const namesIn = (path: string): string[] => listing(path) ?? [];
