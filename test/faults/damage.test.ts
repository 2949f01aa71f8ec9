import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { isCode } from '../../src/base/index.ts';
import { runCommandLine } from '../../src/cli/run.ts';
import { expectedOf } from '../support/fixtures.ts';
import { goldenPath } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';

const work = tempDirectory('damage');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const source = join(work, 'source');
fs.mkdirSync(source);
fs.writeFileSync(join(source, 'file'), noise('damage', 50_000));
let cells = 0;

const DAMAGES = ['missing', 'empty', 'truncated', 'one bit flipped', 'replaced'] as const;
const KINDS = [
  'kopia.repository',
  'kopia.blobcfg',
  'kopia.maintenance',
  'p',
  'q',
  'xn',
  'xs',
  'xr',
  'xe',
  'xw',
  's',
  'n',
  'm',
] as const;
type Damage = (typeof DAMAGES)[number];
type Kind = (typeof KINDS)[number];

/** Where each kind of blob occurs. */
const fixtureOf = (kind: Kind): string => {
  if (kind === 's') return 'incomplete-orphans';
  return kind === 'n' || kind === 'm' ? 'v1-legacy' : 'maintained';
};

function indexesOf(fixture: string): string[] {
  const { indexes } = expectedOf(fixture) as unknown as { indexes: { id: string }[] };
  return indexes.map(({ id }) => id);
}

/** Repositories shard their names in different ways. */
function pathOf(repo: string, id: string): string {
  const names = fs.readdirSync(repo, { recursive: true }).map(String);
  return join(repo, names.find((name) => name.replaceAll('/', '') === `${id}.f`) ?? id);
}

/** A blob of the kind that the newest snapshot needs, and another of its kind. */
function chooseBlob(kind: Kind): { id: string; other: string | undefined; offset?: number } {
  const fixture = fixtureOf(kind);
  const expected = expectedOf(fixture);
  const indexes = indexesOf(fixture);
  const newest = expected.snapshotList.at(-1);
  const packOf = (contentId: string): string =>
    expected.contents.find((content) => content.contentID === contentId)?.packFile ?? '';
  if (kind === 'p' || kind === 'q') {
    const root = newest?.rootEntry.obj ?? '';
    const directory = JSON.parse(expected.show[root] ?? '{}') as {
      entries: { type: string; obj: string }[];
    };
    const file = directory.entries.find(({ type }) => type === 'f');
    const contentId = kind === 'p' ? (file?.obj ?? '') : root;
    const id = packOf(contentId);
    const other = expected.contents.find(
      ({ packFile }) => packFile.startsWith(kind) && packFile !== id,
    );
    const content = expected.contents.find(({ contentID }) => contentID === contentId);
    return { id, other: other?.packFile, offset: content?.packOffset ?? 0 };
  }
  const named = fs
    .readdirSync(goldenPath(`${fixture}/repo`), { recursive: true })
    .map(String)
    .filter((name) => name.endsWith('.f'))
    .map((name) => name.slice(0, -2).replaceAll('/', ''))
    .filter((name) => name.startsWith(kind));
  const active = named.filter((name) => indexes.includes(name));
  const [id = '', next] = active.length > 0 ? active : named;
  const other = next ?? named.find((name) => name !== id);
  return { id, other };
}

function damage(repo: string, kind: Kind, how: Damage): string {
  const { id, other, offset } = chooseBlob(kind);
  const path = pathOf(repo, id);
  const bytes = fs.readFileSync(path);
  switch (how) {
    case 'missing':
      fs.rmSync(path);
      break;
    case 'empty':
      fs.writeFileSync(path, '');
      break;
    case 'truncated':
      fs.writeFileSync(path, bytes.subarray(0, Math.floor(bytes.length / 2)));
      break;
    case 'one bit flipped': {
      // Flips a bit in the middle of the data that the newest snapshot needs, not in a pack's
      // padding.
      const at = offset === undefined ? Math.floor(bytes.length * 0.7) : offset + 20;
      bytes[at] = (bytes[at] ?? 0) ^ 1;
      fs.writeFileSync(path, bytes);
      break;
    }
    case 'replaced': {
      const from = other === undefined ? goldenPath(`v2/repo/${id}.f`) : pathOf(repo, other);
      fs.writeFileSync(
        path,
        fs.existsSync(from) ? fs.readFileSync(from) : noise('other', bytes.length),
      );
    }
  }
  return id;
}

/** The command lines of the table, without `--repo` and password. */
const COMMANDS = ['list', 'restore', 'create', 'verify', 'maintain'] as const;
type Command = (typeof COMMANDS)[number];

function commandLine(command: Command, rootObjectId: string, target: string): string[] {
  switch (command) {
    case 'list':
      return ['snapshot', 'list', '--all'];
    case 'restore':
      return ['snapshot', 'restore', rootObjectId, target];
    case 'create':
      return ['snapshot', 'create', source];
    case 'verify':
      return ['repository', 'verify', '--read-all'];
    case 'maintain':
      return ['repository', 'maintain', '--mode', 'full', '--force'];
  }
}

/**
 * The outcome of a cell. `good`: success. `named`: an error that names the blob. `partly`: the
 * readable part, with a warning that names the blob. `any`: any of these, because the outcome
 * depends on the read data.
 */
function outcomeOf(kind: Kind, how: Damage, command: Command): 'good' | 'named' | 'partly' | 'any' {
  switch (kind) {
    case 'kopia.repository':
    // Without it nobody knows whether blobs are to be locked.
    case 'kopia.blobcfg':
      return 'named';
    case 'kopia.maintenance':
      return command === 'maintain' && how !== 'missing' ? 'named' : 'good';
    case 'p':
      if (command === 'restore' || command === 'verify') return 'named';
      return command === 'maintain' ? 'any' : 'good';
    case 'q':
      // Manifests and directories share these packs; which ones a command reads depends on the
      // fixture.
      return command === 'restore' || command === 'verify' ? 'named' : 'any';
    case 'xe':
    case 'xw':
      return how === 'missing' ? 'any' : 'good';
    case 's':
      // Kept as long as it lasts: a marker that cannot be read protects its packs all the same.
      return 'good';
    case 'm':
      // Without the log of a compaction its inputs count again, which say the same.
      if (how === 'missing') return 'good';
      return command === 'maintain' ? 'named' : 'partly';
    case 'n':
    case 'xn':
    case 'xs':
    case 'xr':
      // A deleted blob looks like a blob that was never written.
      if (how === 'missing') return 'any';
      return command === 'maintain' ? 'named' : 'partly';
  }
}

const filesOf = (directory: string): string[] =>
  fs
    .readdirSync(directory, { recursive: true })
    .map(String)
    .filter((name) => fs.statSync(join(directory, name)).isFile())
    .sort();

function fingerprint(directory: string, names = filesOf(directory)): string {
  const hash = createHash('sha256');
  for (const name of names) {
    hash.update(`${name}\n`).update(fs.readFileSync(join(directory, name)));
  }
  return hash.digest('hex');
}

const CODES = [
  'DAMAGED_BLOB',
  'INDEX_UNREADABLE',
  'WRONG_PASSWORD',
  'NOT_A_REPOSITORY',
  'UNSUPPORTED_REPOSITORY',
  'VERIFY_FAILED',
];
const OTHER_CODES = ['CONTENT_NOT_FOUND', 'RESTORE_INCOMPLETE', 'INDEX_CHANGING'];

describe.each(KINDS)('blob %s', (kind) => {
  const fixture = fixtureOf(kind);
  const { password, username, hostname, ...expected } = expectedOf(fixture);
  const passwordFile = join(work, `password-${kind}`);
  fs.writeFileSync(passwordFile, password);
  const root = expected.snapshotList.at(-1)?.rootEntry.obj ?? '';
  const digests = Object.values(expected.objects).map(({ sha256 }) => sha256);
  const common = ['--password-file', passwordFile, '--client', `${username}@${hostname}`];

  it.each(DAMAGES)('%s: each command says what is wrong, and makes nothing worse', async (how) => {
    vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    let told = '';
    vi.spyOn(process.stderr, 'write').mockImplementation((data) => {
      told += String(data);
      return true;
    });
    for (const command of COMMANDS) {
      const repo = fs.mkdtempSync(join(work, 'repo-'));
      const target = join(work, 'target', String(cells++));
      fs.cpSync(goldenPath(`${fixture}/repo`), repo, { recursive: true });
      fs.mkdirSync(target, { recursive: true });
      const id = damage(repo, kind, how);
      const names = filesOf(repo);
      const before = fingerprint(repo);
      const cell = `${kind} ${how} ${command}`;
      let error: unknown;
      told = '';
      const parameters = [...commandLine(command, root, target), '--repo', repo, ...common];
      const exitCode = await runCommandLine(parameters, (reported) => (error = reported));
      process.exitCode = 0;
      const outcome = outcomeOf(kind, how, command);
      if (error !== undefined) expect(exitCode, cell).toBe(1);
      else if (outcome === 'good' || command === 'create') expect(exitCode, cell).toBe(0);
      else expect([0, 3], cell).toContain(exitCode);
      if (outcome === 'partly') {
        expect(told, cell).toContain(id);
        if (error === undefined && command !== 'create') expect(exitCode, cell).toBe(3);
      }
      if (outcome === 'good') expect(error, cell).toBeUndefined();
      if (outcome === 'named') {
        expect(CODES, `${cell}: ${String(error)}`).toContain((error as { code?: string }).code);
        expect((error as Error).message, cell).toContain(id);
        expect((error as Error).message, cell).not.toMatch(/\n/);
      }
      if (error !== undefined && (outcome === 'any' || outcome === 'partly')) {
        expect(isCode(error, ...CODES, ...OTHER_CODES), cell).toBe(true);
      }
      // A verification adds its findings.
      if (error !== undefined && command !== 'maintain')
        expect(fingerprint(repo, command === 'verify' ? names : undefined), cell).toBe(before);
      // A file is restored whole or not at all.
      for (const name of fs.readdirSync(target, { recursive: true }).map(String)) {
        const path = join(target, name);
        if (!fs.lstatSync(path).isFile()) continue;
        const digest = createHash('sha256').update(fs.readFileSync(path)).digest('hex');
        expect(digests, cell).toContain(digest);
      }
      for (const path of [repo, target]) fs.rmSync(path, { recursive: true });
    }
    vi.restoreAllMocks();
  });
});
