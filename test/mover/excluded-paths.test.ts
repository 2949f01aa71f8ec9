import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Logger, silentLogger } from '../../src/base/index.ts';
import {
  backupVolume,
  excludeRulesIn,
  type ExcludeSources,
  restoreVolumeInPlace,
} from '../../src/mover/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { getSnapshot, type Snapshot, walkTree } from '../../src/snapshot/index.ts';
import { createTest, openTest, PASSWORD } from '../support/repositories.ts';
import { hasKopia, Kopia } from '../support/kopia.ts';

const root = fs.mkdtempSync(join(tmpdir(), 'longshore-excluded-'));
const TAG = 'longshore-excluded-paths';
let repository: Repository;
beforeAll(async () => {
  await createTest(join(root, 'repo'));
  repository = await openTest(join(root, 'repo'), { threads: true });
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(root, { recursive: true, force: true });
});

let made = 0;
function makeVolume(paths: readonly string[]): string {
  const volume = join(root, `volume-${made++}`);
  fs.mkdirSync(volume);
  for (const path of paths) {
    fs.mkdirSync(join(volume, dirname(path)), { recursive: true });
    fs.writeFileSync(join(volume, path), path);
    fs.utimesSync(join(volume, path), 1_700_000_000, 1_700_000_000);
  }
  for (const path of fs.readdirSync(volume, { recursive: true })) {
    if (!fs.statSync(join(volume, String(path))).isDirectory()) continue;
    fs.utimesSync(join(volume, String(path)), 1_700_000_000, 1_700_000_000);
  }
  return volume;
}

const KINDS = {
  'a volume of a pod': { sourceNamespace: 'app', sourcePod: 'web-0', sourceVolume: 'data' },
  'a PVC': {
    sourceNamespace: 'app',
    sourcePvc: 'data',
    operationId: 'du',
    frozenAt: '2026-11-28T00:00:00Z',
  },
};
type Kind = keyof typeof KINDS;

interface Stored {
  readonly snapshot: Snapshot;
  readonly paths: string[];
  readonly note: string | undefined;
}

async function backUp(
  kind: Kind,
  path: string,
  excludes: ExcludeSources = {},
  more: { isBlock?: boolean; logger?: Logger; uid?: string } = {},
): Promise<Stored> {
  const { snapshotId, note } = await backupVolume({
    repository,
    path,
    isBlock: false,
    logger: silentLogger,
    config: {},
    excludes,
    signal: new AbortController().signal,
    onProgress: () => undefined,
    progressIntervalMs: 10,
    stallMs: 60_000,
    uid: `u-${made++}`,
    ...KINDS[kind],
    ...more,
  });
  const snapshot = await getSnapshot(repository, snapshotId);
  const paths: string[] = [];
  if (snapshot.rootEntry?.type === 'd') {
    for await (const entry of walkTree(repository, snapshot.rootEntry)) {
      if (entry.path !== '' && entry.entry.type !== 'd') paths.push(entry.path);
    }
  }
  return { snapshot, note, paths: paths.sort() };
}

describe.each(Object.keys(KINDS) as Kind[])('%s', (kind) => {
  const FILES = ['.snapshot/hourly/a', 'app.log', 'cache/b', 'deep/cache/c', 'deep/keep', 'keep'];

  it('leaves out what rules from all places name, and records them', async () => {
    const volume = makeVolume(FILES);
    const { snapshot, paths, note } = await backUp(kind, volume, {
      annotations: '# of the application\n\n*.log\r\n',
      config: '/cache/',
      storageClass: '.snapshot',
      settings: '/deep/cache',
    });
    expect(paths).toEqual(['deep/keep', 'keep']);
    const rules = ['*.log', '/cache/', '.snapshot', '/deep/cache'];
    expect(JSON.parse(snapshot.tags?.[TAG] ?? '')).toEqual(rules);
    expect(note).toBe('left out by rules: "*.log", "/cache/", ".snapshot", "/deep/cache"');
  });

  it('without rules has no tag and no note', async () => {
    const { snapshot, paths, note } = await backUp(kind, makeVolume(FILES));
    expect(paths).toEqual(FILES);
    expect(snapshot.tags).not.toHaveProperty(TAG);
    expect(note).toBeUndefined();
  });

  it('heeds rules that come and go, in directories that did not change', async () => {
    const volume = makeVolume(FILES);
    const all = await backUp(kind, volume);
    const fewer = await backUp(kind, volume, { annotations: 'cache/\n*.log' });
    expect(fewer.paths).toEqual(['.snapshot/hourly/a', 'deep/keep', 'keep']);
    const other = await backUp(kind, volume, { annotations: 'keep' });
    expect(other.paths).toEqual(FILES.filter((path) => !path.endsWith('keep')));
    const again = await backUp(kind, volume);
    expect(again.paths).toEqual(FILES);
    expect(again.snapshot.rootEntry?.objectId).toBe(all.snapshot.rootEntry?.objectId);
  });

  it('has the note of an earlier data mover that stored it', async () => {
    const volume = makeVolume(FILES);
    const first = await backUp(kind, volume, { annotations: 'keep' }, { uid: 'killed' });
    const second = await backUp(kind, volume, { annotations: 'keep' }, { uid: 'killed' });
    expect(second.snapshot.id).toBe(first.snapshot.id);
    expect(second.note).toBe('left out by rules: "keep"');
  });

  it.each([
    ['a rule that is not valid', 'keep\nbad[\n*.log', ['keep', '*.log'], /"bad\[" is not valid/],
    ['a rule that is too long', `keep\n${'x'.repeat(4096)}`, [], /more than 4096 characters/],
    ['too many rules', 'x\n'.repeat(101), [], /more than 100 rules/],
  ])('is backed up whole despite %s in an annotation', async (_, annotations, rules, problem) => {
    const { snapshot, note } = await backUp(kind, makeVolume(FILES), { annotations });
    expect(JSON.parse(snapshot.tags?.[TAG] ?? '[]')).toEqual(rules);
    expect(note).toMatch(/^ignored rules: /);
    expect(note).toMatch(problem);
  });

  it('takes no path back in by an annotation that the administrator leaves out', async () => {
    const { paths } = await backUp(kind, makeVolume(FILES), {
      annotations: '*.log\n!*',
      storageClass: '.snapshot',
      settings: 'cache',
    });
    expect(paths).toEqual(['app.log', 'deep/keep', 'keep']);
  });

  it('says that annotations are switched off', async () => {
    const excludes = { annotations: 'keep', isWithoutAnnotations: true, settings: '*.log' };
    const { paths, note } = await backUp(kind, makeVolume(FILES), excludes);
    expect(paths).toContain('keep');
    expect(paths).not.toContain('app.log');
    expect(note).toBe(
      'ignored rules: the administrator has switched annotations off; left out by rules: "*.log"',
    );
  });

  it('brought back in place keeps the paths that the rules of its own backup left out', async () => {
    const volume = makeVolume(FILES);
    const { snapshot } = await backUp(kind, volume, { annotations: '*.log\n/cache/' });
    // After a second backup, the policy of the source has its rules.
    await backUp(kind, volume, { annotations: 'keep' });
    fs.writeFileSync(join(volume, 'new'), 'newer than the backup');
    fs.writeFileSync(join(volume, 'new.log'), 'left out');
    fs.rmSync(join(volume, 'keep'));
    await restoreVolumeInPlace({
      repository,
      path: volume,
      isBlock: false,
      logger: silentLogger,
      signal: new AbortController().signal,
      onProgress: () => undefined,
      progressIntervalMs: 10,
      stallMs: 60_000,
      snapshotId: snapshot.id,
      dryRun: false,
      keepExtra: false,
      usedByOther: new AbortController().signal,
      onDone: () => Promise.resolve(),
    });
    const left = fs.readdirSync(volume, { recursive: true, withFileTypes: true });
    const paths = left
      .filter((each) => each.isFile())
      .map((each) => join(each.parentPath, each.name));
    expect(paths.map((each) => each.slice(volume.length + 1)).sort()).toEqual(
      [...FILES, 'new.log'].sort(),
    );
  });

  it('with a wrong rule in its own settings fails before anything is stored', async () => {
    await expect(backUp(kind, makeVolume(FILES), { config: 'a[' })).rejects.toMatchObject({
      code: 'BAD_MOVER_CONFIG',
      message: expect.stringContaining('longshore.excludePaths: ') as string,
    });
  });
});

describe('rules for excluded paths', () => {
  it('are no error of a block volume: a warning says that they do not apply', async () => {
    const image = join(root, 'image');
    fs.writeFileSync(image, Buffer.alloc(1 << 20, 7));
    const warnings: string[] = [];
    const logger: Logger = { ...silentLogger, warn: (_, text) => warnings.push(text) };
    const asked = await backUp('a PVC', image, { annotations: '*' }, { isBlock: true, logger });
    expect(asked.note).toBe('ignored rules: a block volume has no paths to leave out');
    expect(warnings).toContain('a block volume has no paths to leave out');
    expect(asked.snapshot.tags).not.toHaveProperty(TAG);
    const others = await backUp('a PVC', image, { settings: '.snapshot' }, { isBlock: true });
    expect(others.note).toBeUndefined();
  });

  it('make a note that fits into an Event, without control characters', async () => {
    const annotations = Array.from({ length: 90 }, (_, i) => `\u001b[31m]${i}${'x'.repeat(20)}`);
    const { note = '' } = await backUp('a PVC', makeVolume(['a']), {
      annotations: annotations.join('\n'),
    });
    expect(note.length).toBeLessThan(410);
    expect(note).not.toContain('\u001b');
  });

  it('with many stars are matched in bounded time', async () => {
    const name = 'a'.repeat(200);
    const annotations = `${'*a'.repeat(20)}b\n`.repeat(90);
    const { paths } = await backUp('a volume of a pod', makeVolume([name, `d/${name}`]), {
      annotations,
    });
    expect(paths).toHaveLength(2);
  });

  it('leave out the same as a .kopiaignore with the same lines', async () => {
    const names = fc.constantFrom('a', 'b', 'log', 'a.log', '.snapshot', 'x,y', ' z');
    const path = fc.array(names, { minLength: 1, maxLength: 3 }).map((parts) => parts.join('/'));
    const rule = fc
      .array(
        fc.constantFrom('a', 'b', 'log', '*', '**', '/', '!', '.', '?', ' ', '\\', '#', 'x,y'),
        {
          minLength: 1,
          maxLength: 5,
        },
      )
      .map((parts) => parts.join(''));
    const property = fc.asyncProperty(
      fc.array(path, { minLength: 1, maxLength: 12 }),
      fc.array(rule, { minLength: 1, maxLength: 4 }),
      async (all, rules) => {
        // A name cannot be a file and a directory.
        const files = [...new Set(all)].filter(
          (each) => !all.some((other) => other.startsWith(`${each}/`)),
        );
        const { rules: valid } = excludeRulesIn(rules.join('\n'));
        const text = valid.join('\n');
        const byRules = await backUp('a volume of a pod', makeVolume(files), { annotations: text });
        const volume = makeVolume(files);
        fs.writeFileSync(join(volume, '.kopiaignore'), text);
        const byFile = await backUp('a volume of a pod', volume);
        const without = byFile.paths.filter((each) => each !== '.kopiaignore');
        expect(byRules.paths).toEqual(without);
      },
    );
    await fc.assert(property, { numRuns: 20 });
  });

  it.skipIf(!hasKopia)('leave a snapshot that the real Kopia lists and verifies', async () => {
    const annotations = '*.log\n# no rule\n"quoted", \u00fc';
    const { snapshot } = await backUp('a PVC', makeVolume(['a.log', 'b']), { annotations });
    const client = { username: 'default', hostname: 'default' };
    const kopia = new Kopia(PASSWORD).connect(join(root, 'repo'), client);
    const listed = kopia.json<{ id: string; tags: Record<string, string> }[]>(
      ...['snapshot', 'list', '--all'],
    );
    const tags = listed.find(({ id }) => id === snapshot.id)?.tags;
    expect(JSON.parse(tags?.[TAG] ?? '')).toEqual(['*.log', '"quoted", \u00fc']);
    kopia.run('snapshot', 'verify', snapshot.id);
  });
});
