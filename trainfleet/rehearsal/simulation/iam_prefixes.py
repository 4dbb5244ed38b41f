"""The action prefixes in AWS policies (`s3` in `s3:GetObject`), from the Service Authorization Reference.

A missing service makes a correct policy fail, so the list is deliberately long.
"""

SERVICES = frozenset(
    """
    a2c a4b access-analyzer account acm acm-pca action-recommendations activate aiops airflow airflow-serverless amplify amplifybackend
    amplifyuibuilder aoss apigateway app-integrations appconfig appfabric appflow application-autoscaling application-cost-profiler
    application-signals application-transformation applicationinsights appmesh appmesh-preview apprunner appstream appstudio appsync aps
    arc-region-switch arc-zonal-shift arsenal artifact athena auditmanager autoscaling autoscaling-plans aws-marketplace
    aws-marketplace-management aws-portal awsconnector b2bi backup backup-gateway backup-search backup-storage batch bcm-dashboards
    bcm-data-exports bcm-pricing-calculator bcm-recommended-actions bedrock bedrock-agentcore bedrock-mantle billing billingconductor braket
    budgets bugbust cases cassandra ce chatbot chime cleanrooms cleanrooms-ml cloud9 clouddirectory cloudformation cloudfront
    cloudfront-keyvaluestore cloudhsm cloudsearch cloudshell cloudtrail cloudtrail-data cloudwatch codeartifact codebuild codecatalyst codecommit
    codeconnections codedeploy codedeploy-commands-secure codeguru codeguru-profiler codeguru-reviewer codeguru-security codepipeline codestar
    codestar-connections codestar-notifications codewhisperer cognito-identity cognito-idp cognito-sync comprehend comprehendmedical
    compute-optimizer config connect connect-campaigns consoleapp consolidatedbilling controlcatalog controltower cost-optimization-hub cur
    customer-verification databrew dataexchange datapipeline datasync datazone dax dbqms deadline deepcomposer deepracer detective devicefarm
    devops-guru directconnect discovery dlm dms docdb-elastic drs ds ds-data dsql dynamodb ebs ec2 ec2-instance-connect ec2messages ecr
    ecr-public ecs eks eks-auth eks-mcp elastic-inference elasticache elasticbeanstalk elasticfilesystem elasticloadbalancing elasticmapreduce
    elastictranscoder elemental-activations elemental-appliances-software elemental-support-cases elemental-support-content emr-containers
    emr-serverless entityresolution es events evidently execute-api finspace finspace-api firehose fis fms forecast frauddetector freertos
    freetier fsx gamelift gameliftstreams geo geo-maps geo-places geo-routes glacier globalaccelerator glue grafana greengrass groundstation
    groundtruthlabeling guardduty health healthlake honeycode iam identity-sync identitystore identitystore-auth imagebuilder importexport
    inspector inspector2 inspector-scan internetmonitor invoicing iot iot-device-tester iot1click iotanalytics iotdeviceadvisor iotevents
    iotfleethub iotfleetwise iotjobsdata iotmanagedintegrations iotroborunner iotsitewise iottwinmaker iotwireless iq iq-permission ivs ivschat
    kafka kafka-cluster kafkaconnect kendra kendra-ranking kinesis kinesisanalytics kinesisvideo kms lakeformation lambda launchwizard lex
    license-manager license-manager-linux-subscriptions license-manager-user-subscriptions lightsail logs lookoutequipment lookoutmetrics
    lookoutvision m2 machinelearning macie2 managedblockchain managedblockchain-query mapcredits marketplacecommerceanalytics mechanicalturk
    mediaconnect mediaconvert mediaimport medialive mediapackage mediapackage-vod mediapackagev2 mediastore mediatailor medical-imaging memorydb
    mgh mgn migrationhub-orchestrator migrationhub-strategy mobileanalytics mobilehub mobiletargeting monitron mpa mq neptune-db neptune-graph
    network-firewall network-security-director networkflowmonitor networkmanager networkmanager-chat networkmonitor nimble notifications
    notifications-contacts nova-act oam observabilityadmin odb omics one opensearch opsworks opsworks-cm organizations osis outposts panorama
    partnercentral partnercentral-account-management partnercentral-selling payment-cryptography payments pca-connector-ad pca-connector-scep pcs
    personalize pi pipes polly pricing private-networks profile proton purchase-orders q qapps qbusiness qdeveloper qldb quicksight ram rbin rds
    rds-data rds-db redshift redshift-data redshift-serverless refactor-spaces rekognition repostspace resiliencehub resource-explorer
    resource-explorer-2 resource-groups rhelkb robomaker rolesanywhere route53 route53-recovery-cluster route53-recovery-control-config
    route53-recovery-readiness route53domains route53globalresolver route53profiles route53resolver rtbfabric rum s3 s3-object-lambda s3-outposts
    s3express s3files s3tables s3vectors sagemaker sagemaker-data-science-assistant sagemaker-geospatial sagemaker-mlflow
    sagemaker-unified-studio-mcp savingsplans scheduler schemas scn sdb secretsmanager security-ir securityhub securitylake serverlessrepo
    servicecatalog servicediscovery serviceextract servicequotas ses shield signer signin simspaceweaver sms sms-voice snow-device-management
    snowball sns social-messaging sqlworkbench sqs ssm ssm-contacts ssm-guiconnect ssm-incidents ssm-quicksetup ssm-sap ssmmessages sso
    sso-directory sso-oauth states storagegateway sts sumerian support support-console supportapp supportplans supportrecommendations
    sustainability swf synthetics tag tax textract thinclient timestream timestream-influxdb tiros tnb transcribe transfer transform translate
    trustedadvisor ts user-subscriptions uxc vendor-insights verified-access verifiedpermissions voiceid vpc-lattice vpc-lattice-svcs vpce
    waf waf-regional wafv2 wam wellarchitected wickr wisdom workdocs worklink workmail workmailmessageflow workspaces workspaces-instances
    workspaces-web xray
    """.split()  # noqa: SIM905 - unquoted names are easier to compare with the reference
)
