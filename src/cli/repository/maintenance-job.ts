import { type Command, Option } from 'commander';
import { LOG_LEVEL_OPTION, logFormatOption } from '../log-options.ts';
import type { RepoMaintenanceFlags } from './maintenance-job-run.ts';

/** Run by maintenance Jobs, also by those of Velero's server. */
export function addRepoMaintenanceVerb(program: Command): void {
  program
    .command('repo-maintenance', { hidden: true })
    .description('run by maintenance Jobs: do what is due in the repository of one namespace')
    .requiredOption('--repo-name <namespace>', 'namespace whose volumes the repository holds')
    .requiredOption('--backup-storage-location <name>', 'BackupStorageLocation of the repository')
    .addOption(new Option('--repo-type <type>', 'type of the repository').default('kopia'))
    .option(...LOG_LEVEL_OPTION)
    .addOption(logFormatOption())
    .option('--kubeconfig <file>', 'kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod)')
    .action(async (flags: RepoMaintenanceFlags) => {
      const { maintainRepository } = await import('./maintenance-job-run.ts');
      await maintainRepository(flags);
    });
}
