import { lookup } from '../../base/index.ts';
import { type Connection, environment, loadConnections } from '../../config/index.ts';
import { UsageError } from '../usage-error.ts';

/** Typed flags about the repository. */
export interface RepositoryFlags {
  readonly repo?: string;
  readonly passwordFile?: string;
  readonly passwordCommand?: string;
  readonly client?: string;
  /** The connection that the flags came from. Not typed. */
  readonly connectedAs?: string;
}

const NAME = /^@([A-Za-z0-9][A-Za-z0-9._-]*)$/;

/**
 * The name of a connection in `--repo @name`. Undefined for locations. Throws {@link UsageError}.
 */
export function connectionName(repo: string): string | undefined {
  if (!repo.startsWith('@')) return undefined;
  const [, name] = NAME.exec(repo) ?? [];
  if (name !== undefined) return name;
  throw new UsageError(
    `--repo "${repo}" is not the @name of a connected repository; for a path that begins with @, write ./${repo}`,
  );
}

/** Throws {@link UsageError} for an unknown name. */
export async function connectionOf(name: string): Promise<Connection> {
  const { repositories } = await loadConnections(environment.connectionsFile);
  const connection = lookup(repositories, name);
  if (connection) return connection;
  const names = Object.keys(repositories).map((each) => `@${each}`);
  const others = names.length > 0 ? `; there are ${names.join(', ')}` : '';
  throw new UsageError(`no repository is connected as @${name}${others}`);
}

/**
 * Adds defaults to the typed flags. The location comes from LONGSHORE_REPO, else from the current
 * connection. A connection also sets the password source and the client, unless flags or the
 * environment set them. Throws {@link UsageError}, `BAD_CONNECTIONS`.
 */
export async function resolveRepository(
  flags: RepositoryFlags,
  { isNew }: { isNew: boolean },
): Promise<RepositoryFlags> {
  const repo = flags.repo ?? environment.repository;
  const name = repo === undefined ? undefined : connectionName(repo);
  if (repo !== undefined && name === undefined) return { ...flags, repo };
  if (isNew && name === undefined)
    throw new UsageError('no repository: use --repo or LONGSHORE_REPO');
  const connectedAs = name ?? (await currentName());
  const connection = await connectionOf(connectedAs);
  const { passwordFile, passwordCommand } = connection;
  const isPasswordGiven =
    (flags.passwordFile ?? flags.passwordCommand ?? environment.password) !== undefined;
  return {
    ...(connection.client !== undefined && { client: connection.client }),
    ...(!isPasswordGiven && passwordFile !== undefined && { passwordFile }),
    ...(!isPasswordGiven && passwordCommand !== undefined && { passwordCommand }),
    ...flags,
    repo: connection.repo,
    connectedAs,
  };
}

async function currentName(): Promise<string> {
  const { current } = await loadConnections(environment.connectionsFile);
  if (current !== undefined) return current;
  throw new UsageError(
    'no repository: use --repo or LONGSHORE_REPO, or longshore repository connect',
  );
}
