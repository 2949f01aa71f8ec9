/** The architecture: what each folder of src/ may import. ARCHITECTURE.md says why. */
const mayImport = {
  base: [],
  codec: ['base'],
  workers: ['codec', 'base'],
  blob: ['base'],
  repository: ['blob', 'codec', 'base'],
  snapshot: ['repository', 'blob', 'codec', 'base'],
  uploader: ['snapshot', 'repository', 'blob', 'codec', 'base'],
  mover: ['uploader', 'snapshot', 'repository', 'blob', 'codec', 'base'],
  kube: ['base'],
  exposer: ['kube', 'base'],
  agent: ['mover', 'exposer', 'kube', 'config', 'repository', 'base'],
  dev: ['kube', 'base'],
  config: ['base'],
  observability: ['base'],
  // cli may import everything
};

const folders = Object.entries(mayImport).map(([folder, below]) => ({
  name: `imports-of-${folder}`,
  severity: 'error',
  from: { path: `^src/${folder}/` },
  to: { path: '^src/', pathNot: `^src/(${[folder, ...below].join('|')})/` },
}));

const acrossByIndex = {
  name: 'across-folders-by-index',
  comment: 'Other folders are imported through their index.ts.',
  severity: 'error',
  from: { path: '^src/([^/]+)/' },
  to: { path: '^src/[^/]+/', pathNot: ['^src/$1/', '^src/[^/]+/index\\.ts$'] },
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
