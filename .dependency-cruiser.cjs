/** The architecture: what each folder of src/ may import. ARCHITECTURE.md says why. */
const mayImport = {
  base: [],
  codec: ['base'],
  'volume-files': ['codec', 'base'],
  workers: ['volume-files', 'codec', 'base'],
  blob: ['base'],
  repository: ['blob', 'volume-files', 'codec', 'base'],
  snapshot: ['repository', 'blob', 'volume-files', 'codec', 'base'],
  uploader: ['snapshot', 'repository', 'blob', 'volume-files', 'codec', 'base'],
  mover: ['uploader', 'snapshot', 'repository', 'blob', 'codec', 'base'],
  kube: ['base'],
  exposer: ['kube', 'base'],
  agent: ['mover', 'exposer', 'kube', 'config', 'repository', 'base'],
  dev: ['kube', 'base'],
  config: ['base'],
  observability: ['base'],
  // cli may import everything
};

/** The thread that counts a tree ahead of its upload loads the rules, and not the repository that policies are in. */
const IGNORE_PATTERNS = '^src/snapshot/policy/ignore-pattern\\.ts$';
/** Threads compare listings with Kopia's directories as text; they load that file, and not the repository that snapshots are in. */
const DIRECTORY_TEXT = '^src/snapshot/directory-text\\.ts$';
const alsoOf = (folder) => (folder === 'workers' ? [DIRECTORY_TEXT] : []);

const folders = Object.entries(mayImport).map(([folder, below]) => ({
  name: `imports-of-${folder}`,
  severity: 'error',
  from: { path: `^src/${folder}/` },
  to: { path: '^src/', pathNot: [`^src/(${[folder, ...below].join('|')})/`, ...alsoOf(folder)] },
}));

const acrossByIndex = {
  name: 'across-folders-by-index',
  comment: 'Other folders are imported through their index.ts.',
  severity: 'error',
  from: { path: '^src/([^/]+)/' },
  to: {
    path: '^src/[^/]+/',
    pathNot: ['^src/$1/', '^src/[^/]+/index\\.ts$', DIRECTORY_TEXT, IGNORE_PATTERNS],
  },
};

const inRepository = (folder, below) => ({
  name: `inside-repository-${folder}`,
  severity: 'error',
  from: { path: `^src/repository/${folder}/` },
  to: {
    path: '^src/repository/[^/]+/',
    pathNot: `^src/repository/(${[folder, ...below].join('|')})`,
  },
});

module.exports = {
  forbidden: [
    ...folders,
    acrossByIndex,
    inRepository('format', []),
    inRepository('index', ['content/content-id']),
    inRepository('content', ['format', 'index']),
    inRepository('object', ['content', 'index', 'format']),
    inRepository('manifest', ['content', 'index', 'format']),
    {
      name: 'declared-packages',
      comment: 'What comes along with another package may go with its next version; types too.',
      severity: 'error',
      from: { path: '^src/' },
      to: { dependencyTypes: ['npm-no-pkg', 'npm-unknown'] },
    },
    {
      name: 'no-circular',
      severity: 'error',
      from: {},
      to: { circular: true },
    },
  ],
  options: {
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    doNotFollow: { path: 'node_modules' },
  },
};
