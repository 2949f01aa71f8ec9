import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadPolicyTree, type Policy } from '../../../src/snapshot/index.ts';
import { policyLabels } from '../../../src/snapshot/policy/policy.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { randomOf } from '../../support/random.ts';
import { openTest, PASSWORD } from '../../support/repositories.ts';

type Fields = Record<string, unknown>;
/** A source's own policy, then those of its parent directory, user and host. */
type Levels = readonly Fields[];

const TABLE: Record<string, Levels> = {
  'sizes of zero': [
    { files: { maxFileSize: 0 }, compression: { minSize: 0, maxSize: 0 } },
    { files: { maxFileSize: 1000 }, compression: { minSize: 10, maxSize: 20 } },
  ],
  'counts of zero': [
    { retention: { keepLatest: 0 }, upload: { maxParallelSnapshots: 0, maxParallelFileReads: 0 } },
    { retention: { keepLatest: 5 }, upload: { maxParallelFileReads: 8 } },
    { upload: { parallelUploadAboveSize: 0 } },
  ],
  'an interval of zero': [
    { scheduling: { intervalSeconds: 0, runMissed: false } },
    { scheduling: { intervalSeconds: 3600, runMissed: true } },
  ],
  'false for what Kopia stores only if true': [
    {
      files: { noParentIgnore: false, noParentDotFiles: false },
      scheduling: { manual: false },
      compression: { noParentOnlyCompress: false },
    },
    {
      files: { noParentIgnore: true, noParentDotFiles: true },
      scheduling: { manual: true },
      compression: { noParentOnlyCompress: true, onlyCompress: ['.a'] },
    },
    { compression: { onlyCompress: ['.b'] } },
  ],
  'false for what has a third value': [
    { files: { oneFileSystem: false, ignoreCacheDirs: false }, errorHandling: {} },
    {
      files: { oneFileSystem: true, ignoreCacheDirs: true },
      errorHandling: { ignoreUnknownTypes: false, ignoreFileErrors: true },
    },
  ],
  'empty names and lists': [
    { files: { ignore: [] }, compression: { compressorName: '' }, splitter: { algorithm: '' } },
    {
      files: { ignore: ['*.b', '*.a'], ignoreDotFiles: ['.x'] },
      compression: { compressorName: 'zstd' },
      splitter: { algorithm: 'FIXED-4M' },
    },
  ],
  'extensions of several levels': [
    { compression: { onlyCompress: ['.z', '.b'], neverCompress: ['.q'] } },
    { compression: { onlyCompress: ['.a'], noParentOnlyCompress: true } },
    { compression: { onlyCompress: ['.c'], neverCompress: ['.r', '.q'] } },
  ],
  'no extensions, and none from above': [
    { compression: { noParentOnlyCompress: true, noParentNeverCompress: true } },
    { compression: { onlyCompress: ['.a'], neverCompress: ['.b'] } },
  ],
  'times of several levels': [
    { scheduling: { timeOfDay: [{ hour: 9, min: 30 }], cron: [] } },
    { scheduling: { timeOfDay: [{ hour: 1, min: 5 }], cron: ['0 1 * * *'] } },
    {
      scheduling: {
        timeOfDay: [
          { hour: 9, min: 30 },
          { hour: 9, min: 3 },
        ],
        noParentTimeOfDay: true,
      },
    },
    { scheduling: { timeOfDay: [{ hour: 23, min: 0 }] } },
  ],
  'parts of logging and of shadow copies': [
    { logging: { directories: { snapshotted: 0 } }, osSnapshots: { volumeShadowCopy: {} } },
    { logging: { directories: { ignored: 9 }, entries: { cacheHit: 7 } } },
    { osSnapshots: { volumeShadowCopy: { enable: 2 } } },
  ],
  'actions of a folder and of a root': [
    { actions: { beforeFolder: { path: '/a' } } },
    { actions: { afterFolder: { path: '/b' }, beforeSnapshotRoot: { path: '/c', timeout: 3 } } },
    { actions: { beforeSnapshotRoot: { path: '/d' }, afterSnapshotRoot: { script: 'e' } } },
  ],
  'an end of inheritance': [
    { retention: { keepLatest: 3 } },
    { noParent: true, files: { ignore: ['*.a'] }, actions: { afterFolder: { path: '/b' } } },
    { retention: { keepDaily: 3 } },
  ],
  'an end of inheritance at the source': [
    { noParent: true, actions: { beforeFolder: { path: '/a' } }, files: { maxFileSize: 7 } },
    { files: { ignore: ['*.a'] } },
  ],
};

/** Every field with values that have been misread: zero, false, empty. */
const VALUES: Record<string, readonly unknown[]> = {
  'retention.keepLatest': [0, 3],
  'retention.ignoreIdenticalSnapshots': [false, true],
  'files.ignore': [[], ['*.b', '*.a']],
  'files.noParentIgnore': [false, true],
  'files.ignoreDotFiles': [[], ['.x']],
  'files.noParentDotFiles': [false, true],
  'files.ignoreCacheDirs': [false, true],
  'files.maxFileSize': [0, 9],
  'files.oneFileSystem': [false, true],
  'errorHandling.ignoreFileErrors': [false, true],
  'errorHandling.ignoreDirectoryErrors': [false, true],
  'errorHandling.ignoreUnknownTypes': [false, true],
  'scheduling.intervalSeconds': [0, 60],
  'scheduling.timeOfDay': [[], [{ hour: 3, min: 4 }], [{ hour: 1, min: 2 }]],
  'scheduling.noParentTimeOfDay': [false, true],
  'scheduling.manual': [false, true],
  'scheduling.cron': [[], ['1 2 * * *']],
  'scheduling.runMissed': [false, true],
  'compression.compressorName': ['', 'zstd'],
  'compression.onlyCompress': [[], ['.z', '.b'], ['.a']],
  'compression.noParentOnlyCompress': [false, true],
  'compression.neverCompress': [[], ['.z', '.b'], ['.a']],
  'compression.noParentNeverCompress': [false, true],
  'compression.minSize': [0, 5],
  'compression.maxSize': [0, 6],
  'metadataCompression.compressorName': ['', 'none'],
  'splitter.algorithm': ['', 'FIXED-4M'],
  'upload.maxParallelSnapshots': [0, 2],
  'upload.maxParallelFileReads': [0, 2],
  'upload.parallelUploadAboveSize': [0, 2],
};
const RANDOM_ROWS = 60;
const random = randomOf(7);
const below = (end: number): number => Math.floor(random() * end);

function randomPolicy(): Fields {
  const policy: Record<string, Fields> = {};
  for (const [path, values] of Object.entries(VALUES)) {
    const [section = '', field = ''] = path.split('.');
    const choice = below(values.length + 1);
    if (choice < values.length) (policy[section] ??= {})[field] = values[choice];
  }
  return { ...policy, ...(below(8) === 0 && { noParent: true }) };
}

const rows = new Map<string, Levels>([
  ...Object.entries(TABLE),
  ...Array.from({ length: RANDOM_ROWS }, (_, row): [string, Levels] => [
    `random policies ${row}`,
    [randomPolicy(), randomPolicy(), randomPolicy(), randomPolicy()],
  ]),
]);

/** Without empty sections, which Go writes and we do not always have. */
const shown = (policy: unknown): unknown =>
  JSON.parse(JSON.stringify(policy), (_, value: unknown) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).filter(([, field]) => !isEmpty(field)));
  });

const isEmpty = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.keys(value).length === 0;

const work = tempDirectory('policy-merging');
const repo = join(work, 'repo');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

describe.runIf(hasKopia)('the policies of a source and those above it', () => {
  const ofKopia: unknown[] = [];
  const ours: Policy[] = [];

  beforeAll(async () => {
    fs.mkdirSync(repo);
    const kopia = new Kopia(PASSWORD).create(repo);
    const hosts = [...rows.keys()].map((_, row) => `host${row}`);
    await using repository = await openTest(repo);
    for (const [row, levels] of [...rows.values()].entries()) {
      for (const [level, policy] of levels.entries()) {
        const userName = level < 3 ? 'user' : '';
        const path = ['/data/source', '/data'][level] ?? '';
        const labels = policyLabels({ host: `host${row}`, userName, path });
        // Stored unchanged, as by another program.
        repository.manifests.put(labels, policy);
      }
    }
    await repository.flush();
    const targets = hosts.map((host) => `user@${host}:/data/source`);
    const lines = kopia.run('policy', 'show', '--json', ...targets).trim();
    ofKopia.push(...(JSON.parse(`[${lines.replaceAll(/\}\s*\n\{/g, '},{')}]`) as unknown[]));
    for (const host of hosts) {
      const source = { host, userName: 'user', path: '/data/source' };
      ours.push((await loadPolicyTree(repository, source)).root);
    }
  }, 120_000);

  it.each([...rows.keys()].map((name, row) => ({ name, row })))(
    'give what Kopia shows: $name',
    ({ row }) => {
      expect(shown(ours[row])).toEqual(shown(ofKopia[row]));
    },
  );
});
