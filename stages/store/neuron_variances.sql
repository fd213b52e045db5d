-- How much each neuron varies over the cells of an operator, and which vary most.
--
-- subject   VARCHAR   the model
-- operator  VARCHAR   whose cells
-- layer     SMALLINT  decoder layer, from 0
-- neuron    INTEGER   neuron of the layer's MLP, from 0
-- mean      DOUBLE    mean activation over the operator's cells
-- variance  DOUBLE    variance of the activation over the operator's cells
-- rank      BIGINT    1 for the largest variance of the operator; equal variances by layer, then neuron
select
    subject, operator, layer, neuron, mean, variance,
    row_number() over (partition by operator order by variance desc, layer, neuron) as rank
from neuron_sums
where cells > 0
order by operator, rank
