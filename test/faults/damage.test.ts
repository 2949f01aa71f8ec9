import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { isCode, Secret, silentLogger } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import {
  openRepository,
  parseContentId,
  type Problem,
  type Repository,
  runMaintenance,
  verifyContents,
} from '../../src/repository/index.ts';
import { collectGarbage, listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { expectedOf } from '../support/fixtures.ts';
import { goldenPath, prng } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, restore } from '../support/repositories.ts';

const work = tempDirectory('damage');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const FIXTURE = 'maintained';
const { password, username, hostname, ...expected } = expectedOf(FIXTURE);
const indexes = (expected as unknown as { indexes: { id: string }[] }).indexes.map(({ id }) => id);
const source = join(work, 'source');
fs.mkdirSync(source);
fs.writeFileSync(join(source, 'file'), prng('damage', 50_000));
const signal = new AbortController().signal;
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
] as const;
type Damage = (typeof DAMAGES)[number];
type Kind = (typeof KINDS)[number];

function pathOf(repo: string, id: string): string {
  return id.length <= 20
    ? join(repo, `${id}.f`)
    : join(repo, id.slice(0, 1), id.slice(1, 4), `${id.slice(4)}.f`);
}

/** A blob of the kind that the newest snapshot needs, and another of its kind. */
function chooseBlob(kind: Kind): { id: string; other: string | undefined; offset?: number } {
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
    .readdirSync(goldenPath(`${FIXTURE}/repo`), { recursive: true })
    .map(String)
    .filter((name) => name.endsWith('.f'))
    .map((name) => name.slice(0, -2).replaceAll('/', ''))
    .filter((name) => name.startsWith(kind));
  const active = named.filter((name) => indexes.includes(name));
  const [id = '', other = named.find((name) => name !== id)] = active.length > 0 ? active : named;
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
      // In the middle of what the newest snapshot needs, not in a pack's padding.
      const at = offset === undefined ? Math.floor(bytes.length * 0.7) : offset + 20;
      bytes[at] = (bytes[at] ?? 0) ^ 1;
      fs.writeFileSync(path, bytes);
      break;
    }
    case 'replaced': {
      const from = other === undefined ? goldenPath(`v2/repo/${id}.f`) : pathOf(repo, other);
      fs.writeFileSync(
        path,
        fs.existsSync(from) ? fs.readFileSync(from) : prng('other', bytes.length),
      );
    }
  }
  return id;
}

const commands: Record<string, (repository: Repository, target: string) => Promise<unknown>> = {
  list: (repository) => listSnapshots(repository),
  restore: async (repository, target) => {
    const root = (await listSnapshots(repository)).at(-1)?.rootEntry;
    if (!root) throw new Error('no snapshot');
    return restore(repository, root, target);
  },
  create: (repository) => backUp(repository, source),
  verify: async (repository) => {
    const problems: (Problem | { message: string })[] = [];
    const counters = { contents: 0, packs: 0, bytesRead: 0 };
    await verifyContents(repository, {
      readAll: true,
      signal,
      counters,
      onProblem: (problem) => problems.push(problem),
    });
    const roots = (await listSnapshots(repository)).flatMap(({ rootEntry }) => rootEntry ?? []);
    problems.push(...(await verifyTrees(repository, roots, { readAll: false, signal })).problems);
    const [first] = problems;
    if (first) throw Object.assign(new Error(first.message), { code: 'DAMAGED_BLOB' });
  },
  maintain: (repository) =>
    runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: true,
      dryRun: false,
      signal,
      logger: silentLogger,
      collectGarbage,
    }),
};

/** What a cell must give: success, an error that names the blob, or either where it depends on what is read. */
function outcomeOf(kind: Kind, how: Damage, command: string): 'good' | 'named' | 'any' {
  switch (kind) {
    case 'kopia.repository':
      return 'named';
    case 'kopia.blobcfg':
      return how === 'missing' ? 'good' : 'named';
    case 'kopia.maintenance':
      return command === 'maintain' && how !== 'missing' ? 'named' : 'good';
    case 'p':
      if (command === 'restore' || command === 'verify') return 'named';
      return command === 'maintain' ? 'any' : 'good';
    case 'q':
      // Manifests and directories share these packs; which ones a command reads depends on the fixture.
      return command === 'restore' || command === 'verify' ? 'named' : 'any';
    case 'xe':
    case 'xw':
      return how === 'missing' ? 'any' : 'good';
    case 'xn':
    case 'xs':
    case 'xr':
      // A blob that is gone cannot be told from one that never was.
      return how === 'missing' ? 'any' : 'named';
  }
}

function fingerprint(directory: string): string {
  const hash = createHash('sha256');
  for (const name of fs.readdirSync(directory, { recursive: true }).map(String).sort()) {
    const path = join(directory, name);
    if (fs.statSync(path).isFile()) hash.update(`${name}\n`).update(fs.readFileSync(path));
  }
  return hash.digest('hex');
}

const CODES = ['DAMAGED_BLOB', 'WRONG_PASSWORD', 'NOT_A_REPOSITORY', 'UNSUPPORTED_REPOSITORY'];
const OTHER_CODES = ['CONTENT_NOT_FOUND', 'VERIFY_FAILED', 'RESTORE_INCOMPLETE', 'INDEX_CHANGING'];

describe.each(KINDS)('blob %s', (kind) => {
  it.each(DAMAGES)('%s: each command says what is wrong, and makes nothing worse', async (how) => {
    for (const [command, run] of Object.entries(commands)) {
      const repo = fs.mkdtempSync(join(work, 'repo-'));
      const target = join(repo, '../target', String(cells++));
      fs.cpSync(goldenPath(`${FIXTURE}/repo`), repo, { recursive: true });
      fs.mkdirSync(target, { recursive: true });
      const id = damage(repo, kind, how);
      const before = fingerprint(repo);
      const cell = `${kind} ${how} ${command}`;
      let error: unknown;
      try {
        await using storage = await openStorage(repo);
        await using repository = await openRepository({
          storage,
          password: new Secret(password),
          client: { username, hostname },
          dataPath: { factory: createInProcessPool, threads: 2, slabCount: 12 },
        });
        await run(repository, target);
      } catch (caught) {
        error = caught;
      }
      const outcome = outcomeOf(kind, how, command);
      if (outcome === 'good') expect(error, cell).toBeUndefined();
      if (outcome === 'named') {
        expect(CODES, `${cell}: ${String(error)}`).toContain((error as { code?: string }).code);
        expect((error as Error).message, cell).toContain(id);
        expect((error as Error).message, cell).not.toMatch(/\n/);
      }
      if (error !== undefined && outcome === 'any') {
        expect(isCode(error, ...CODES, ...OTHER_CODES), cell).toBe(true);
      }
      if (error !== undefined && command !== 'maintain')
        expect(fingerprint(repo), cell).toBe(before);
      // A file is restored whole or not at all.
      for (const name of fs.readdirSync(target, { recursive: true }).map(String)) {
        const path = join(target, name);
        if (!fs.statSync(path).isFile()) continue;
        const digest = createHash('sha256').update(fs.readFileSync(path)).digest('hex');
        expect(
          Object.values(expected.objects).map(({ sha256 }) => sha256),
          cell,
        ).toContain(digest);
      }
      for (const path of [repo, target]) fs.rmSync(path, { recursive: true });
    }
  });
});

it('the table looks at contents that are there', () => {
  for (const { contentID } of expected.contents.slice(0, 3))
    expect(parseContentId(contentID)).toBe(contentID);
});
