import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';

export const PEERS = process.env.PEERS_DIR ?? join(homedir(), '.cache', '.peers');
export const KOPIA = join(PEERS, 'bin', 'kopia');
export const hasKopia = existsSync(KOPIA);
if (!hasKopia && process.env.REQUIRE_PEERS === '1') throw new Error(`no kopia at ${KOPIA}`);

/** The real Kopia with its own folders, connected to a file system repository. */
export class Kopia {
  readonly #home = mkdtempSync(join(tmpdir(), 'kopia-'));
  readonly #password: string;

  constructor(password: string) {
    this.#password = password;
  }

  get #environment(): NodeJS.ProcessEnv {
    return {
      ...process.env,
      KOPIA_CONFIG_PATH: join(this.#home, 'config'),
      KOPIA_CACHE_DIRECTORY: join(this.#home, 'cache'),
      KOPIA_LOG_DIR: join(this.#home, 'log'),
      KOPIA_PASSWORD: this.#password,
      KOPIA_CHECK_FOR_UPDATES: 'false',
      // Without it Kopia hides the command to upgrade a repository.
      KOPIA_UPGRADE_LOCK_ENABLED: 'true',
    };
  }

  /** Throws Kopia's error output. */
  run(...parameters: string[]): string {
    const options = { env: this.#environment, encoding: 'utf8', maxBuffer: 1 << 28 } as const;
    const result = spawnSync(KOPIA, parameters, options);
    if (result.status === 0) return result.stdout;
    throw new Error(`kopia ${parameters.join(' ')}: ${result.stderr || result.stdout}`);
  }

  /** To run it as a separate process. */
  command(...parameters: string[]): [string, string[], { env: NodeJS.ProcessEnv }] {
    return [KOPIA, parameters, { env: this.#environment }];
  }

  json<T>(...parameters: string[]): T {
    return JSON.parse(this.run(...parameters, '--json')) as T;
  }

  connect(path: string, client = { username: 'tester', hostname: 'testhost' }): this {
    this.run('repository', 'connect', 'filesystem', '--path', path, ...clientFlags(client));
    return this;
  }

  /** Any storage: `['s3', '--bucket', …]`. */
  connectTo(storage: string[], client = { username: 'tester', hostname: 'testhost' }): this {
    this.run('repository', 'connect', ...storage, ...clientFlags(client));
    return this;
  }

  createAt(storage: string[], ...flags: string[]): this {
    const client = clientFlags({ username: 'tester', hostname: 'testhost' });
    this.run('repository', 'create', ...storage, ...client, ...flags);
    return this;
  }

  create(path: string, ...flags: string[]): this {
    const client = clientFlags({ username: 'tester', hostname: 'testhost' });
    this.run('repository', 'create', 'filesystem', '--path', path, ...client, ...flags);
    return this;
  }

  /** All checks that a user would run on a repository. */
  verifyAll(): void {
    this.run('snapshot', 'verify', '--verify-files-percent=100');
    this.run('content', 'verify', '--download-percent=100');
    this.run('index', 'list');
  }
}

const clientFlags = (client: { username: string; hostname: string }): string[] => [
  `--override-username=${client.username}`,
  `--override-hostname=${client.hostname}`,
];

export const tempDirectory = (name: string): string => mkdtempSync(join(tmpdir(), `${name}-`));

/** Throws the first differences between two trees, in names, attributes or bytes. */
export function assertSameTree(a: string, b: string): void {
  const listing = (path: string): string =>
    execFileSync('find', ['.', '-printf', '%p %y %m %U %G %s %T@ %l\\n'], {
      cwd: path,
      maxBuffer: 1 << 28,
    })
      .toString('latin1')
      .split('\n')
      .map((line) => line.replace(/^(\S.* d \d+ \d+ \d+) \d+ /, '$1 - '))
      .sort()
      .join('\n');
  const [left, right] = [listing(a).split('\n'), listing(b).split('\n')];
  const missing = left.filter((line) => !right.includes(line)).slice(0, 5);
  const extra = right.filter((line) => !left.includes(line)).slice(0, 5);
  if (missing.length + extra.length > 0) {
    throw new Error(`trees differ:\n- ${missing.join('\n- ')}\n+ ${extra.join('\n+ ')}`);
  }
  execFileSync('diff', ['-r', '--no-dereference', a, b]);
}
