import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Peer } from './peers.ts';

const PEERS = process.env.PEERS_DIR ?? join(homedir(), '.cache', '.peers');

/** Where a peer is: in the peers' folder, or on the PATH; undefined when it is nowhere. */
export function findTool(name: string): string | undefined {
  const folders = [join(PEERS, 'bin'), ...(process.env.PATH ?? '').split(':')];
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/** The commands of another backup program for the scenarios, without compression. */
export interface Tool {
  create(repo: string): string[];
  backup(repo: string, source: string): string[];
  /** Restores the newest backup of the source below a new directory, in which it runs. */
  restore(repo: string, source: string, out: string): string[];
  /** Where the restored tree then is. */
  restoredAt(source: string, out: string): string;
  env(directory: string): NodeJS.ProcessEnv;
}

/** Borg wants a name for each backup. */
let backups = 0;

export const TOOLS: Readonly<Record<Exclude<Peer, 'kopia'>, Tool>> = {
  rustic: {
    create: (repo) => ['-r', repo, 'init', '--set-compression', '0'],
    backup: (repo, source) => ['-r', repo, '--no-progress', 'backup', source],
    restore: (repo, source, out) => [
      ...['-r', repo, '--no-progress', 'restore'],
      ...[`latest:${source}`, out],
    ],
    restoredAt: (_source, out) => out,
    env: (directory) => ({
      RUSTIC_PASSWORD: 'bench',
      RUSTIC_CACHE_DIR: join(directory, 'rustic-cache'),
    }),
  },
  restic: {
    create: (repo) => ['-q', '-r', repo, 'init'],
    backup: (repo, source) => ['-q', '-r', repo, '--compression', 'off', 'backup', source],
    restore: (repo, _source, out) => ['-q', '-r', repo, 'restore', 'latest', '--target', out],
    restoredAt: (source, out) => join(out, source),
    env: (directory) => ({
      RESTIC_PASSWORD: 'bench',
      RESTIC_CACHE_DIR: join(directory, 'restic-cache'),
    }),
  },
  borg: {
    create: (repo) => ['init', '-e', 'repokey-blake2', repo],
    backup: (repo, source) => ['create', '-C', 'none', `${repo}::${++backups}`, source],
    restore: (repo) => ['extract', `${repo}::${backups}`],
    restoredAt: (source, out) => join(out, source),
    env: (directory) => ({
      BORG_PASSPHRASE: 'bench',
      BORG_BASE_DIR: join(directory, 'borg'),
      BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK: 'yes',
      BORG_RELOCATED_REPO_ACCESS_IS_OK: 'yes',
    }),
  },
};
