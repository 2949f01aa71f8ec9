/**
 * The architecture: the allowed imports of each folder of src/. ARCHITECTURE.md has the reasons.
 */
const mayImport = {
  base: [],
  cron: ['base'],
  codec: ['base'],
  'volume-files': ['codec', 'base'],
  'device-files': ['base'],
  workers: ['volume-files', 'codec', 'base'],
  blob: ['base'],
  repository: ['blob', 'volume-files', 'codec', 'base'],
  snapshot: ['repository', 'blob', 'volume-files', 'codec', 'base'],
  uploader: ['snapshot', 'repository', 'blob', 'volume-files', 'codec', 'base'],
  mover: ['uploader', 'snapshot', 'repository', 'blob', 'codec', 'base'],
  kube: ['base'],
  exposer: ['kube', 'base'],
  'volume-policy': ['base'],
  plugin: ['volume-policy', 'kube', 'base'],
  archive: ['plugin', 'blob', 'kube', 'base'],
  'item-operations': ['archive', 'plugin', 'kube', 'base'],
  'repository-access': ['kube', 'config', 'base'],
  backup: ['kube', 'base'],
  // The documents of both are YAML in a ConfigMap, read line by line.
  restore: ['backup', 'volume-policy', 'kube', 'base'],
  agent: ['mover', 'exposer', 'repository-access', 'kube', 'config', 'repository', 'base'],
  server: [
    ...['restore-volumes', 'restore', 'backup-volumes', 'backup', 'item-operations', 'archive'],
    ...['plugin', 'volume-policy', 'cron'],
    ...['repository-access', 'repository', 'blob', 'codec', 'kube', 'config', 'base'],
  ],
  'backup-volumes': [
    ...['backup', 'archive', 'plugin', 'volume-policy', 'repository-access', 'kube', 'base'],
  ],
  'restore-volumes': [
    ...['restore', 'backup-volumes', 'backup', 'archive', 'plugin', 'repository-access'],
    ...['kube', 'base'],
  ],
  dev: ['kube', 'base'],
  config: ['base'],
  observability: ['base'],
  // cli may import everything
};

/**
 * The thread that counts a tree ahead of its upload loads the rules, and not the repository that
 * policies are in.
 */
const IGNORE_PATTERNS = '^src/snapshot/policy/ignore-pattern\\.ts$';
/**
 * Threads compare directories with Kopia's streams of them; they load these files, and not the
 * repository that snapshots are in.
 */
const DIRECTORY_TEXT = '^src/snapshot/directory/directory-(text|check)\\.ts$';
/**
 * Loaded before the rest of the program, by `cli/head-start.ts`: their folders are most of that
 * rest.
 */
const LOADED_FIRST = '^src/(repository/format/keys|config/environment)\\.ts$';
const HEAD_START = '^src/cli/head-start\\.ts$';
/** The help of the command line lists the controllers, and must not load the server. */
const CONTROLLER_NAMES = '^src/server/compose/controller-names\\.ts$';
/** The wiring of the server has more folders to join than its controllers. */
const COMPOSE = 'agent|exposer|observability|snapshot';
const alsoOf = (folder) => (folder === 'workers' ? [DIRECTORY_TEXT] : []);

const folders = Object.entries(mayImport).map(([folder, below]) => ({
  name: `imports-of-${folder}`,
  severity: 'error',
  from: {
    path: `^src/${folder}/`,
    ...(folder === 'server' && { pathNot: '^src/server/compose/' }),
  },
  to: { path: '^src/', pathNot: [`^src/(${[folder, ...below].join('|')})/`, ...alsoOf(folder)] },
}));

const compose = {
  name: 'wiring-of-the-server',
  comment: 'Makes the controllers. It knows no flags, and only the command line imports it.',
  severity: 'error',
  from: { path: '^src/server/compose/' },
  to: {
    path: '^src/',
    pathNot: `^src/(server|${[...mayImport.server, COMPOSE].join('|')})/`,
  },
};

const belowCompose = {
  name: 'controllers-know-no-wiring',
  severity: 'error',
  from: { path: '^src/', pathNot: '^src/(cli|server/compose)/' },
  to: { path: '^src/server/compose/' },
};

const acrossByIndex = {
  name: 'across-folders-by-index',
  comment: 'Other folders are imported through their index.ts.',
  severity: 'error',
  from: { path: '^src/([^/]+)/', pathNot: HEAD_START },
  to: {
    path: '^src/[^/]+/',
    pathNot: [
      ...['^src/$1/', '^src/[^/]+/index\\.ts$', '^src/server/compose/index\\.ts$'],
      ...[CONTROLLER_NAMES, DIRECTORY_TEXT, IGNORE_PATTERNS],
    ],
  },
};

const headStart = {
  name: 'head-start-loads-little',
  comment: 'What is imported here is loaded before the key is being derived.',
  severity: 'error',
  from: { path: HEAD_START },
  to: { path: '^src/', pathNot: ['^src/base/index\\.ts$', LOADED_FIRST] },
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

/** The wings of a folder: which other wings each may import. Files beside the wings are common. */
const wings = {
  'agent/mover': ['directions'],
  'agent/status': ['reconcile'],
  'archive/signing': ['encryption'],
  'archive/tar': [],
  'archive/write-once': [],
  'base/go': [],
  'base/posix': [],
  'base/text': ['go'],
  'cli/install': ['output'],
  'cli/node-agent': ['output'],
  'cli/output': [],
  'cli/plugin': [],
  'cli/progress': ['output'],
  'cli/server': ['backups', 'browse', 'locations'],
  'dev/api-server': [],
  'plugin/actions/groups': ['snapshots'],
  'plugin/actions/movements': [],
  'plugin/actions/snapshots': ['groups'],
  'snapshot/directory': [],
  'snapshot/policy': [],
  'snapshot/verify': ['directory'],
  'uploader/estimate': ['listing', 'upload'],
  'uploader/restore': ['file-data', 'listing', 'upload'],
  'uploader/upload': ['file-data', 'listing', 'long-directory'],
  'volume-policy/yaml': [],
};
const betweenWings = Object.entries(wings).map(([wing, others]) => {
  const folder = wing.replace(/\/[^/]+$/, '');
  const own = wing.slice(folder.length + 1);
  return {
    name: `wing-${wing}`,
    severity: 'error',
    from: { path: `^src/${wing}/` },
    to: {
      path: `^src/${folder}/[^/]+/`,
      pathNot: `^src/${folder}/(${[own, ...others].join('|')})/`,
    },
  };
});

module.exports = {
  forbidden: [
    ...betweenWings,
    ...folders,
    compose,
    belowCompose,
    headStart,
    acrossByIndex,
    inRepository('format', []),
    inRepository('index', []),
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
